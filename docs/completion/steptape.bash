# SPDX-License-Identifier: Apache-2.0
# bash completion of steptape.  Commands, options and their values are read from --help, so that
# they are written down once; files complete everything else.

_steptape_commands() {
    steptape --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p'
}

_steptape_options() { # COMMAND
    steptape help "$1" 2>/dev/null | grep -o -e '--[a-z][a-z-]*' | sort -u
}

# --format=table|csv|json in the help of the command names the values.
_steptape_values() { # COMMAND OPTION
    steptape help "$1" 2>/dev/null |
        sed -n "s/^.*$2=\([a-z0-9-]*|[a-z0-9|-]*\).*/\1/p" | head -n 1 | tr '|' '\n'
}

_steptape() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command="" i words=""
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -*) ;;
        *)
            command=${COMP_WORDS[i]}
            break
            ;;
        esac
    done
    if [ "$prev" = = ]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    elif [ "$cur" = = ]; then
        cur=""
    fi
    if [ -z "$command" ]; then
        words="$(_steptape_commands) help --help --version --quiet --verbose"
    elif [ "$command" = help ]; then
        words=$(_steptape_commands)
    elif [[ $cur == -* ]]; then
        words=$(_steptape_options "$command")
    elif [[ $prev == --* ]]; then
        words=$(_steptape_values "$command" "$prev")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -o default -F _steptape steptape
