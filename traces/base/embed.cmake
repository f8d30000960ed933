# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=x.c -DSYMBOL=name -DFILES="a|b" -P embed.cmake
# Writes a C table of {file name, contents} so that data files travel inside the program.
set(body "/* Generated from data files; do not edit. */\n#include \"traces/base/embedded.h\"\n\n")
set(table "")
set(i 0)
string(REPLACE "|" ";" FILES "${FILES}")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)"
                       "\\1\n    " bytes "${bytes}")
  string(APPEND body "static const char text_${i}[] = {\n    ${bytes}0};\n")
  string(APPEND table "    {\"${name}\", text_${i}},\n")
  math(EXPR i "${i} + 1")
endforeach()
string(APPEND body "\nconst struct st_embedded ${SYMBOL}[] = {\n${table}    {0, 0},\n};\n")
file(WRITE ${OUT} "${body}")
