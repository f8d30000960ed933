# SPDX-License-Identifier: Apache-2.0
# fish completion of steptape.  Commands and options are read from --help.

function __steptape_commands
    steptape --help 2>/dev/null | string replace -rf '^  ([a-z][a-z-]*) +(.*)' '$1\t$2'
end

function __steptape_options
    set -l tokens (commandline -opc)
    for token in $tokens[2..]
        if not string match -q -- '-*' $token
            steptape help $token 2>/dev/null | string match -ra -- '--[a-z][a-z-]*' | sort -u
            return
        end
    end
end

complete -c steptape -n '__fish_is_nth_token 1' -f -a '(__steptape_commands)'
complete -c steptape -n '__fish_seen_subcommand_from help' -f -a '(__steptape_commands)'
complete -c steptape -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__steptape_options)'
