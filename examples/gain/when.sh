#!/usr/bin/env bash
# The runs behind README's table "when federating helps": five situations, four methods, three seeds.
#
#     bash examples/gain/when.sh runs/when
#     python docs/results/when.py runs/when
#
# Called again, it goes on where it was.  Fields of methods are those that docs/results/gain.md has chosen on held-out
# samples of seed 1; seeds 31 to 33 chose nothing.
set -euo pipefail
out=${1:?the folder of the runs, such as runs/when}
here=$(dirname "$0")
protea=${PROTEA:-protea}

both="seed=31..33 alone=false,true local:alone=false fedproto:alone=false fedpagr:alone=false"
methods="method.name=local@cosine,fedloo,fedpagr,fedproto fedproto:method.pull=1 fedpagr:method.temperature=0.1"
digits() { $protea sweep "$here/digits.toml" --out "$out/$1" $both $methods "${@:2}"; }

digits many-samples clients=3 'data.partition="iid"'
digits few-samples clients=20 'data.partition="iid"'
digits missing-classes 'data.partition={kind="dirichlet",alpha=0.1}'
[ -f features/unlike.npz ] || ${PYTHON:-python} "$here/unlike.py" features/unlike.npz
digits unlike-data 'data.source={kind="npz",path="features/unlike.npz"}' 'data.partition="by-key"'
[ -f features/banking77.npz ] || ${PYTHON:-python} "$here/embed.py" banking77 --to features
$protea sweep "$here/banking77.toml" --out "$out/many-classes" $both method.name=local@smoothing,fedloo,fedpagr,fedproto \
    fedproto:method.pull=10 fedpagr:method.temperature=0.1
