"""The program ``avm``: a hook, which a client waits for, without the command line's imports; all else with them."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["hook"]:
        from avmfs.cli.hooked import quick

        if quick(sys.argv[2:]):
            return
    from avmfs.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
