#!/bin/sh
# A day of one agent, with nothing but its mount: sh agent_day.sh ~/agents/bob/avm
set -eu
cd "$1"

echo '== session start: messages, news, what is known'
cat ':inbox?mark=read'
cat memory/shared/:delta
cat ':recall?q=release plan freeze&max_tokens=500'

echo '== work: read what changed, edit as ever'
cat shared/plan.md:delta
sed -i 's/Monday/Tuesday/' shared/plan.md
echo '- QA has until Tuesday noon' >> shared/plan.md
cat shared/plan.md:diff

echo '== remember: a note of my own, with what is known about it'
mkdir -p private/lessons
echo 'Look at the freeze calendar before promising a release date.' > private/lessons/freeze.md
echo 'release,lesson' > private/lessons/freeze.md:tags
echo '{"importance": 0.8}' > private/lessons/freeze.md:meta
echo '/shared/plan.md derived' > private/lessons/freeze.md:links

echo '== tell, and wait for the answer'
echo 'The release moves to Tuesday. Is QA fine with noon?' > tell/alice
cat ':inbox?mark=read&wait=30'

echo '== handoff: for whoever goes on, myself included'
cat > shared/handoff.md <<'END'
# Handoff
Done: the plan says Tuesday. Open: release notes. See /shared/plan.md.
END
echo 'release,handoff' > shared/handoff.md:tags
echo 'Handoff is in /shared/handoff.md' > 'tell/@all?expires=2d'
echo > memory/shared/:mark
