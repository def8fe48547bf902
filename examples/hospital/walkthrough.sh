#!/usr/bin/env bash
# Three hospitals and a coordinator on this machine, from nothing to trained models.  README.md explains each step.
#
#     bash walkthrough.sh [DIRECTORY]     a new directory; a temporary one if none is given
#
# ROUNDS (5) and PORT (8443) can be set in the environment.  Needs bash 4.3 or newer, and protea[flower].
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${1:-$(mktemp -d)}
rounds=${ROUNDS:-5}
port=${PORT:-8443}
sites="north south coast"

mkdir -p "$work"
if [ -n "$(ls -A "$work")" ]; then
    echo "$work is not empty.  Choose another directory." >&2
    exit 1
fi

started=()
cleanup() {
    code=$?
    for process in "${started[@]+"${started[@]}"}"; do
        kill "$process" 2>/dev/null || true # most have ended; Flower's programs end with the process that started them
    done
    wait
    if [ "$code" -ne 0 ]; then
        echo "Failed.  Look into $work/*.log" >&2
        tail -n 5 "$work"/*.log >&2 || true
    fi
}
trap cleanup EXIT

step() { printf '\n== %s\n' "$*"; }

step "Each hospital has its data, its model and its settings in a directory of its own"
for site in $sites; do
    cp -R "$here/$site" "$work/$site"
done
python "$here/deal.py" "$work/north" "$work/south" "$work/coast"

step "The coordinator makes the federation, and a bundle for each hospital"
protea federation init "$work/federation" --classes malignant,benign --sites north,south,coast \
    --method fedproto --dim 32 --rounds "$rounds" --quorum 2 --tls localhost --port "$port" \
    --set training.optimizer=adam --set training.lr=0.003 --set deadline=300

for site in $sites; do
    step "$site opens its bundle and looks what would leave"
    protea site check "$work/federation/bundles/$site.protea" --dir "$work/$site" --html "$work/$site.html"
done

step "The coordinator serves; the hospitals join"
protea federation serve "$work/federation" --listen 127.0.0.1 > >(tee "$work/coordinator.log") 2>&1 &
started+=($!)
for site in $sites; do
    protea site join --dir "$work/$site" >"$work/$site.log" 2>&1 &
    started+=($!)
done
for process in "${started[@]}"; do
    wait -n # whichever ends next; one that fails ends all of this
done

step "What each hospital has written down about what it sent"
for site in $sites; do
    echo "$work/$site/audit.jsonl: $(wc -l <"$work/$site/audit.jsonl") messages; the first one with prototypes:"
    grep -m 1 train "$work/$site/audit.jsonl"
done

step "Each hospital keeps its model, and takes it away as a folder"
for site in $sites; do
    protea site export "$work/$site.safetensors" --dir "$work/$site"
done
protea site export --to "$work/north-model" --dir "$work/north"
protea predict "$work/north-model" "$work/north/patients.csv" --out "$work/north-answers.csv"

step "The result"
grep Accuracy "$work/coordinator.log"
echo "All of it is in $work"
