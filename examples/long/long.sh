#!/usr/bin/env bash
# The runs of docs/results/long.md, in stages.  Called again, a stage goes on where it was.
#
#     bash examples/long/long.sh runs/long STAGE [SEED...]      # seeds 1 2 3 if none is named
#
# Stages, in the order in which they tell most: choose, distil, many, curves, cifar10, fashion, texts, texts-server,
# ablations, others.  One process works on a setting and seed at a time, so two may run side by side: one with seed 1,
# one with seed 2, or two stages.  ONLY="banking77-dirichlet" limits a stage to some of its settings.
set -euo pipefail
out=${1:?the folder of the runs, such as runs/long}
stage=${2:?a stage, such as many}
seeds=(${@:3})
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3)
here=$(dirname "$0")
protea=${PROTEA:-protea}
python=${PYTHON:-python}

dirichlet() { echo "data.partition={kind=\"dirichlet\",alpha=$1}"; }
pathological() { echo "data.partition={kind=\"pathological\",classes_per_client=$1}"; }
run() { nice -n 10 $protea sweep "$@"; }                      # FILE --out FOLDER CHANGES...
wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; } # whether a setting is asked for
chosen() { cat "$here/chosen/${1%%-*}.txt"; } # what stage choose found, written by docs/results/long.py

many() { # calls $1 with the name, file and partition of each of the four settings with many classes
    for set in banking77 clinc150; do
        [ -f "features/$set.npz" ] || $python "$here/../gain/embed.py" "$set" --to features
        if wanted "$set-dirichlet"; then "$1" "$set-dirichlet" "$here/$set.toml" "$(dirichlet 0.1)"; fi
        own=$([ $set = banking77 ] && echo 10 || echo 20)
        if wanted "$set-pathological"; then "$1" "$set-pathological" "$here/$set.toml" "$(pathological $own)"; fi
    done
}
images() { # calls $1 with the name and file of the two settings of images
    for set in $2; do if wanted "$set"; then "$1" "$set" "$here/$set.toml"; fi; done
}

# One field of each method, four values, and three variants of Local: by the held-out samples of seed 4, which no table
# has.  A fifth of the rounds.  The same values serve for both partitions of a data set.
FIELDS="fedproto:method.pull=0.1,1,10,100 fedtgp:method.pull=0.1,1,10,100 fedsa:method.pull=0.1,1,10,100
    protonorm:method.scale=1,10,30,100 fedpagr:method.temperature=0.05,0.1,0.2,0.5"
TRIED="method.name=local,local@cosine,local@smoothing,fedproto,fedtgp,fedsa,protonorm,fedpagr"
choose() {
    local name=$1 file=$2 rounds
    [[ $name == *-pathological ]] && return
    rounds=$(($(sed -n 's/^rounds = //p' "$file") / 5))
    run "$file" --out "$out/choose/$name" seed=4 rounds=$rounds evaluation.every=$rounds evaluation.shared=never $TRIED \
        $FIELDS "${@:3}"
    $python "$here/../../docs/results/long.py" chosen "$out/choose/$name" "$here/chosen/${name%-dirichlet}.txt"
}

# Everybody with the value that was chosen; our own method, FedLOO, with its defaults.  Local is the first of the list.
table() {
    local name=$1 file=$2 local words
    words=$(chosen "$name")
    local=$(field method.name | cut -d= -f2)
    words=${words/method.name=$local/}
    run "$file" --out "$out/table/$name-$seed" seed=$seed \
        method.name=$local,fedloo,fedproto,protonorm,fedsa,fedpagr,fedtgp $words "${@:3}"
}
alone() {
    local name=$1 file=$2 words
    words=$(chosen "$name")
    words=${words/method.name=*([^ ])/}
    run "$file" --out "$out/table/$name-alone-$seed" seed=$seed alone=true \
        method.name=fedloo,fedproto,protonorm,fedsa,fedpagr,fedtgp $words "${@:3}"
}
scales() { # a curve of the field by which ProtoNorm stands or falls, and one of FedTGP's
    run "$2" --out "$out/curve/$1-scale-$seed" seed=$seed method.name=protonorm method.scale=1,3,10,30,100,300 "${@:3}"
}
thresholds() {
    run "$2" --out "$out/curve/$1-threshold-$seed" seed=$seed method.name=fedtgp method.threshold=1,3,10,30,100,300 \
        "${@:3}"
}
others() {
    run "$2" --out "$out/table/$1-others-$seed" seed=$seed \
        method.name=fedpcl,fedhp,fedproc,feddistill,fedgh,fedl2g,fedorgp,fedplvm,fedsaf "${@:3}"
}
codes() { # FedTGP as its authors' code has it, beside the default of the table
    run "$2" --out "$out/table/$1-code-$seed" seed=$seed method.name=fedtgp@code
}
ablations() {
    name=$1 file=$2 more=("${@:3}") words=$(chosen "$1")
    part fedtgp method.margin=adaptive,none method.mlp=true,false
    part fedsa method.contrast=0,1 method.calibration=0,1
    part fedpagr method.alignment=0,1 method.separation=0,0.5
    part protonorm method.alignment=thomson,unit,none
    part fedproto method.scale=1,1.1,1.4,2 # "upscaling helps FedProto up to 1.1 and breaks it at 1.4"
}
part() { # of one method, with the value that was chosen for it, two of its fields varied
    run "$file" --out "$out/ablation/$name-$1-$seed" seed=$seed method.name=$1 $(field $1) "${@:2}" "${more[@]}"
}
field() { tr ' ' '\n' <<<"$words" | grep "^$1[:=]" || true; } # of what was chosen, the words of one method

DISTIL="method.name=fedprotokd,fedpkd,fedprotokd@mixture,fedpkd@mixture,fed2pkd@student,local,fedprotokd@zeta,fedprotokd@no_importance
    fedprotokd:method.public_epochs=1 fedpkd:method.public_epochs=1"
distil() {
    for set in $2; do
        for alpha in 0.1 0.3; do
            wanted "distil-$set-$alpha" || continue
            run "$here/distil-$set.toml" --out "$out/table/distil-$set-$alpha-$1" seed=$1 $DISTIL "$(dirichlet $alpha)"
        done
    done
}

shopt -s extglob
mkdir -p "$here/chosen"
case $stage in
    choose) many choose; images choose "cifar10 fashion mtsamples ohsumed" ;;
    distil) for seed in "${seeds[@]}"; do distil $seed "cifar10 fashion"; done ;;
    many) for part in table alone; do for seed in "${seeds[@]}"; do many $part; done; done ;;
    curves) for part in scales thresholds; do for seed in "${seeds[@]}"; do many $part; done; done ;;
    others) for seed in "${seeds[@]}"; do many others; done ;;
    cifar10 | fashion)
        for part in table codes alone; do for seed in "${seeds[@]}"; do images $part $stage; done; done ;;
    texts) for seed in "${seeds[@]}"; do images table "mtsamples ohsumed"; done ;;
    texts-server)
        for seed in "${seeds[@]}"; do
            for set in mtsamples ohsumed; do
                run "$here/$set.toml" --out "$out/curve/$set-server-$seed" seed=$seed method.name=fedtgp \
                    method.server_lr=0.01,0.1,1 method.server_epochs=100,400
            done
        done ;;
    ablations) for seed in "${seeds[@]}"; do many ablations; images ablations cifar10; done ;;
    *) echo "There is no stage $stage.  Stages: choose distil many curves cifar10 fashion texts texts-server ablations others" >&2; exit 2 ;;
esac
