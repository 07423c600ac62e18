"""The program ``avm``: a hook, which a client waits for, without the command line's imports; all else with them."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["hook"]:
        from avmfs.cli.hooked import quick
        from avmfs.closed_streams import stand_in_for_closed

        stand_in_for_closed(drop=True)
        if quick(sys.argv[2:]):
            return
    from avmfs.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
