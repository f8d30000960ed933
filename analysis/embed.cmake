# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=x.c -DFILES=report_run.sql;... -P embed.cmake
# Writes C definitions `const char st_<name>_sql[]` of SQL files, so that they travel inside the
# program.
set(body "/* Generated from SQL files of analysis/; do not edit. */\n#include \"analysis/report_sql.h\"\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)"
                       "\\1\n    " bytes "${bytes}")
  string(APPEND body "\nconst char st_${name}_sql[] = {\n    ${bytes}0};\n")
endforeach()
file(WRITE ${OUT} "${body}")
