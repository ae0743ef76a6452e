"""``dptoolkit completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from dptoolkit._validate import one_of
from dptoolkit.cli.command import FINE, Command, build
from dptoolkit.cli.output import json_text

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_dptoolkit() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
    elif [ "${{current#-}}" != "$current" ]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _dptoolkit dptoolkit"""


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def _completion(commands: Mapping[str, Command], args: argparse.Namespace) -> tuple[str, int]:
    shell = one_of("shell", args.shell, SHELLS)
    _, parsers = build(commands)
    options = {name: [word for word in parser.options if word.startswith("--")] for name, parser in parsers.items()}
    if shell == "fish":
        script = _fish(options, {name: command.help for name, command in commands.items()})
    else:
        script = ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash(options)
    return (json_text({"shell": shell, "script": script}) if args.json else script), FINE


def _bash(options: dict[str, list[str]]) -> str:
    cases = "\n".join(f'            {name}) words="{" ".join(own)}" ;;' for name, own in options.items())
    return _BASH.format(commands=" ".join(options), cases=cases)


def _fish(options: dict[str, list[str]], helps: dict[str, str]) -> str:
    lines = []
    for name, own in options.items():
        words = helps[name].replace("'", "\\'")
        lines.append(f"complete -c dptoolkit -n __fish_use_subcommand -a {name} -d '{words}'")
        lines += [f"complete -c dptoolkit -n '__fish_seen_subcommand_from {name}' -l {option[2:]}" for option in own]
    return "\n".join(lines)


def command(commands: Callable[[], Mapping[str, Command]]) -> Command:
    """The command; ``commands`` returns the table of all commands, this one included, so it is called late."""
    return Command(
        "A script that completes commands and options in a shell.",
        _EXAMPLES,
        _completion_arguments,
        lambda args: _completion(commands(), args),
    )


_EXAMPLES = """\
  dptoolkit completion bash >> ~/.bashrc
  dptoolkit completion zsh >> ~/.zshrc
  dptoolkit completion fish > ~/.config/fish/completions/dptoolkit.fish"""
