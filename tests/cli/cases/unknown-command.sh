# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
refuses 2 "did you mean 'replay'" steptape repaly x.tape
refuses 2 "did you mean 'info'" steptape inof
refuses 2 "\`steptape --help\` lists them" steptape gibberish
refuses 2 "lists them" steptape help gibberish
refuses 2 "no option '--frobnicate'" steptape --frobnicate info
refuses 2 "one command at a time" steptape help info dump
