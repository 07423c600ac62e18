#!/bin/sh
# Two agents, one memory: what the README shows, run for real in a temporary place. Each command is printed before it
# runs; an answer that is not as it must be ends the demo with exit 1.
set -eu

DEMO=$(mktemp -d "${TMPDIR:-/tmp}/avm-demo.XXXXXX")
export AVM_CONFIG_DIR="$DEMO/config" AVM_DATA_DIR="$DEMO/data" AVM_RUNTIME_DIR="$DEMO/run"
ALICE=$DEMO/alice/avm
BOB=$DEMO/bob/avm

tidy() {
    avm-daemon stop >/dev/null 2>&1 || true
    for mountpoint in "$ALICE" "$BOB"; do
        if grep -q " $mountpoint " /proc/mounts 2>/dev/null; then fusermount3 -uz "$mountpoint" || true; fi
    done
    rm -rf "$DEMO"
}
trap tidy EXIT
trap 'exit 130' INT TERM

title() { printf '\n\033[1m# %s\033[0m\n' "$1" | if [ -t 1 ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi; }

# show COMMAND [EXPECTED]: print it, run it, and insist on EXPECTED in what it says.
show() {
    printf '$ %s\n' "$(printf '%s' "$1" | sed "s|$DEMO|~|g")"
    said=$(eval "$1") || { printf '%s\ndemo: the command failed\n' "$said" >&2; exit 1; }
    [ -z "$said" ] || printf '%s\n' "$said" | sed "s|$DEMO|~|g"
    if [ $# -gt 1 ] && ! printf '%s' "$said" | grep -qF -- "$2"; then
        printf 'demo: expected to see: %s\n' "$2" >&2
        exit 1
    fi
}

title "two agents, one daemon"
show "avm init alice bob --root $DEMO"
show "avm-daemon start --daemon"
show "avm warmup"
show "avm-daemon status" ready

title "a shared file: what alice writes, bob has at his next open"
show "echo 'Silicon vendors look frothy; trim NVDA before earnings.' > $ALICE/shared/market.md"
show "cat $BOB/shared/market.md" "trim NVDA"
show "cat $BOB/shared/market.md:delta" "trim NVDA"
show "echo 'RSI at 72, momentum fading.' >> $ALICE/shared/market.md"
show "cat $BOB/shared/market.md:delta" "+RSI at 72"
show "cat $BOB/shared/market.md:delta" "(no changes)"

title "metadata beside the file"
show "echo 'market,nvda' > $ALICE/shared/market.md:tags"
show "cat $BOB/shared/market.md:meta" '"tags"'
show "cat $BOB/shared/:list" market.md

title "recall by meaning: other words than the note uses"
show "echo 'Deploys are frozen on Fridays after the October outage.' > $ALICE/shared/deploys.md"
show "echo 'The team lunch moved to the Thai place on 4th street.' > $ALICE/shared/lunch.md"
printf '(waiting until the three notes have their vectors)\n'
for _ in $(seq 100); do
    grep -q '"indexed": true' "$BOB/shared/lunch.md:meta" && avm-daemon status --json | grep -q '"waiting_semantic": 0' && break
    sleep 0.1
done
show "cat '$BOB/:recall?q=are semiconductor stocks overvalued'" "Silicon vendors look frothy"
show "avm search -a bob 'when must we not release software'" deploys.md

title "private is private"
show "echo 'my own plan' > $ALICE/private/plan.md"
show "ls $ALICE/memory/private" alice
show "ls $BOB/memory/private" bob
if cat "$BOB/memory/private/alice/plan.md" 2>/dev/null; then echo "demo: bob can read it" >&2; exit 1; fi

title "messages"
show "echo 'Numbers are in, please look.' > '$ALICE/tell/bob?priority=urgent'"
show "cat $BOB/:inbox" "Numbers are in"
show "echo > $BOB/:inbox"
show "cat $BOB/:inbox" "0 unread"

title "done"
show "avm-daemon stop"
