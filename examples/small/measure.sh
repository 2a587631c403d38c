#!/bin/sh
# Makes the numbers of README.md, of ../search and of docs/measured.md with the
# model of run.toml.
#
#     sh examples/small/measure.sh PART ...
#
# runs one or several parts, which are the functions below, in the current
# folder. There it expects `pretrained` (what run.toml makes), `GLUE`,
# `SQUAD` and `RACE` (the benchmarks as published), `text` and `shards-held-out`
# (see README.md), for `reviews` also `aclImdb` (see reviews.py), for `cloze`,
# `more` and `overlap` three collections of news (see articles.py), and for
# `more` the files of more_questions.py. `sentences` comes after `reviews`,
# `simcse` after `vectors`, `distil` and `narrow` after `sst`, `curves` after
# `exits`. `narrow` needs `shards-train`, too. Each writes folders with a report.json, and what `evaluate`
# prints to a file of its name that ends in .txt. What is finished is not made
# again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rows=GLUE/STS-B/train.tsv
dev=GLUE/STS-B/dev.tsv

finetune() {  # finetune OUTPUT OPTION ...
    output=$1; shift
    if [ ! -e "$output/report.json" ]; then
        keras-albert finetune --output "$output" "$@"
    fi
}

evaluate() {  # evaluate NAME OPTION ...
    name=$1; shift
    if [ ! -e "$name.txt" ]; then
        keras-albert evaluate "$@" > "$name.new"
        mv "$name.new" "$name.txt"
    fi
}

pretrained_and_not() {  # pretrained_and_not OUTPUT OPTION ...: three seeds
    output=$1; shift
    for start in "" --from-scratch; do
        finetune "$output$start" --model pretrained --seeds 3 $start "$@"
    done
}
with_examples_of() {  # with_examples_of TASK_FILE OUTPUT
    # `pretrained`, which `evaluate` then measures on other examples.
    if [ ! -e "$2/task.json" ]; then
        mkdir -p "$2"
        cp pretrained/spiece.* pretrained/albert_config.json \
            pretrained/model.keras "$2"
        cp "$1" "$2/task.json"
    fi
}
glue() {  # glue TASK OUTPUT OPTION ...
    task=$1 output=$2; shift 2
    pretrained_and_not "$output" --task "$task" --train GLUE "$@"
}

# Learning rates and numbers of passes, on a tenth of the training rows

split() {  # a folder like GLUE's, whose dev.tsv is every tenth training row
    for task in SST-2 CoLA MRPC RTE; do
        header=1
        if [ $task = CoLA ]; then header=0; fi
        mkdir -p "split.$$/$task"
        awk -v h=$header 'NR <= h || NR % 10' "GLUE/$task/train.tsv" \
            > "split.$$/$task/train.tsv"
        awk -v h=$header 'NR <= h || NR % 10 == 0' "GLUE/$task/train.tsv" \
            > "split.$$/$task/dev.tsv"
    done
    mv "split.$$" split
}
search() {  # search NAME
    keras-albert sweep --file "$here/search-$1.toml" --output "search-$1"
}
search_task() {  # search_task TASK
    if [ ! -e split ]; then split; fi
    search "$1"
}
search_sst() { search_task SST-2; }
search_cola() { search_task CoLA; }
search_mrpc() { search_task MRPC; }
search_rte() { search_task RTE; }

# Tasks

sst() {
    glue SST-2 sst --steps 4000 --validate-every 4000 --sequence-length 64 \
        --learning-rate 3e-4
    evaluate sst-together --model sst --data GLUE
    evaluate sst-soup --model sst --data GLUE --average weights
}
cola() {
    glue CoLA cola --steps 2675 --validate-every 2675 --batch-size 16 \
        --learning-rate 2e-4 --sequence-length 64
}
mrpc() {
    glue MRPC mrpc --steps 1000 --validate-every 1000 --batch-size 16 \
        --learning-rate 1e-4 --sequence-length 128
}
rte() {
    glue RTE rte --steps 312 --validate-every 312 --batch-size 16 \
        --learning-rate 5e-5 --sequence-length 128
}
pairs_first() {  # MRPC and RTE after STS-B, as the paper's after MNLI
    python "$here/other_pairs.py" GLUE > other-pairs.tsv
    finetune sts --model pretrained --task regression --validation none \
        --train other-pairs.tsv --columns.text sentence1 \
        --columns.pair sentence2 --columns.label score \
        --steps 1300 --batch-size 16 --learning-rate 1e-4 --sequence-length 128
    search_task RTE-sts
    search_task MRPC-sts
    for start in sts pretrained; do
        finetune "rte-from-$start" --model "$start" --task RTE --train GLUE \
            --seeds 8 --steps 312 --validate-every 312 --batch-size 16 \
            --learning-rate 2e-5 --sequence-length 128
    done
    finetune mrpc-from-sts --model sts --task MRPC --train GLUE --seeds 3 \
        --steps 460 --validate-every 460 --batch-size 16 \
        --learning-rate 5e-5 --sequence-length 128
}
squad() {
    pretrained_and_not squad --task SQuAD-1.1 --train SQUAD --any-size \
        --steps 900 --validate-every 900 --batch-size 32 --learning-rate 3e-4 \
        --sequence-length 128 --windows.stride 64
}
race() {
    pretrained_and_not race --task RACE --train RACE --any-size \
        --steps 300 --validate-every 300 --batch-size 16 --learning-rate 3e-4
}
race_more() {  # all training questions, as published
    finetune race-more --model pretrained --task RACE --train RACE --any-size \
        --steps 1800 --validate-every 1800 --batch-size 32 --optimizer muon \
        --learning-rate 5e-4 --precision mixed_bfloat16
}

# Vectors

whiten() {  # whiten OUTPUT OPTION ...
    output=$1; shift
    if [ ! -e "$output" ]; then
        keras-albert whiten --output "$output" --data "$rows" \
            --columns sentence1 sentence2 "$@"
    fi
}
similarity() {  # similarity OUTPUT OPTION ...: three seeds
    output=$1; shift
    finetune "$output" --task similarity --train "$rows" \
        --columns.text sentence1 --columns.pair sentence2 \
        --columns.label score --seeds 3 --batch-size 16 "$@"
}
pairs() {  # pairs NAME MODEL
    evaluate "vectors-$1" --model "$2" --task similarity --data "$dev" \
        --columns.text sentence1 --columns.pair sentence2 \
        --columns.label score
}
vectors() {
    pairs mean pretrained
    whiten white --model pretrained --pooling idf
    pairs white white
    whiten white-words --model pretrained --words 0.5
    cat text/train/ENG*.txt > novels.txt
    if [ ! -e white-novels ]; then
        keras-albert whiten --output white-novels --data novels.txt \
            --model pretrained --pooling idf
    fi
    pairs white-novels white-novels
    pairs white-words white-words
    similarity trained --model white --epochs 4 --learning-rate 3e-5
    similarity trained-mean --model pretrained --epochs 6 --learning-rate 1e-4
    for seed in 0 1 2; do
        pairs "trained-$seed" "trained/seed-$seed"
        pairs "trained-mean-$seed" "trained-mean/seed-$seed"
        whiten "both-$seed" --model "trained/seed-$seed" --words 0.1
        pairs "both-$seed" "both-$seed"
    done
}
simcse() {
    cut -f 8,9 "$rows" | tail -n +2 | tr '\t' '\n' | sort -u > texts.txt
    for rate in 1e-5 3e-5 1e-4; do
        finetune "simcse-$rate" --model pretrained --task embedding \
            --train texts.txt --dropout 0.1 --steps 200 --batch-size 64 \
            --sequence-length 64 --learning-rate "$rate"
        pairs "simcse-$rate" "simcse-$rate"
    done
    finetune simcse-white --model white --task embedding --train texts.txt \
        --dropout 0.1 --steps 200 --batch-size 64 --sequence-length 64 \
        --learning-rate 1e-5
    pairs simcse-white simcse-white
}

# Early exit

exits() {
    for kind in shared drawn; do
        finetune "exits-$kind" --model pretrained --task SST-2 \
            --train GLUE --exits "$kind" --seeds 3 --steps 1500 \
            --validate-every 1500 --sequence-length 64 --learning-rate 3e-4
    done
    finetune exits-four --model pretrained --task SST-2 --train GLUE \
        --exits shared --depth 4 --seeds 3 --steps 1500 \
        --validate-every 1500 --sequence-length 64 --learning-rate 3e-4
    finetune exits-mrpc --model pretrained --task MRPC --train GLUE \
        --exits own --seeds 3 --steps 1000 --validate-every 1000 \
        --batch-size 16 --learning-rate 1e-4 --sequence-length 128
}
exits_compared() {  # a classifier for each layer, or one for all four
    for kind in own shared drawn; do
        finetune "exits-four-$kind" --model pretrained --task SST-2 \
            --train GLUE --exits "$kind" --depth 4 --seeds 3 --steps 1500 \
            --validate-every 1500 --sequence-length 64 --learning-rate 3e-4
        for layers in 1 2 3 4; do
            for seed in 0 1 2; do
                evaluate "exits-four-$kind-$layers-$seed" --data GLUE \
                    --model "exits-four-$kind/seed-$seed" --layers $layers
            done
        done
    done
}
curves() {  # with nothing else running
    for run in shared drawn four mrpc; do
        for seed in 0 1 2; do
            evaluate "curve-$run-$seed" --model "exits-$run/seed-$seed" \
                --data GLUE --exit-curve "curve-$run-$seed.png"
        done
    done
}

# Distillation: students with one layer, the teacher is `sst`

distil() {
    for start in "" --from-scratch; do
        for teacher in "" "--teacher sst"; do
            finetune "student$start${teacher:+-taught}" --model pretrained \
                --task SST-2 --train GLUE --depth 1 --steps 1500 \
                --validate-every 1500 --sequence-length 64 \
                --learning-rate 3e-4 --seeds 3 $start $teacher
        done
    done
}

narrow_pretrained() {  # narrow_pretrained OUTPUT SEED STEPS OPTION ...
    output=$1 seed=$2 steps=$3; shift 3
    if [ ! -e "$output/report.json" ]; then
        keras-albert pretrain --data shards-train --config narrow.json \
            --output "$output" --seed "$seed" --validation shards-held-out \
            --validation-steps 64 --batch-size 32 --steps "$steps" \
            --warmup-steps $(((steps + 5) / 10)) \
            --examples.sequence-length 64 --examples.masked-lm-prob 0.4 \
            --examples.max-predictions 26 --optimizer.optimizer muon \
            --optimizer.learning-rate 0.0015 "$@"
    fi
}
narrow() {  # a narrower student, of 128 in place of 256
    if [ ! -e narrow.json ]; then
        sed -e 's/"hidden_size": 256/"hidden_size": 128/' \
            -e 's/"num_attention_heads": 4/"num_attention_heads": 2/' \
            -e 's/"intermediate_size": 1024/"intermediate_size": 512/' \
            pretrained/albert_config.json > narrow.json
    fi
    for seed in 0 1; do
        narrow_pretrained narrow-$seed $seed 3000
        narrow_pretrained narrow-$seed-taught $seed 3000 --teacher pretrained
    done
    # The arithmetic of 3,000 steps with the teacher.
    narrow_pretrained narrow-0-longer 0 5475
    for start in narrow-0 narrow-0-taught; do
        for teacher in "" "--teacher sst"; do
            finetune "sst-$start${teacher:+-by-sst}" --model $start \
                --task SST-2 --train GLUE --steps 1500 --validate-every 1500 \
                --sequence-length 64 --learning-rate 3e-4 --seeds 3 $teacher
        done
    done
}

# Continued pretraining: from novels to the text that every Python carries

continued() {
    if [ ! -e python ]; then
        python "$here/../python_corpus.py" python
    fi
    for part in train held_out; do
        if [ ! -e "python/$part/manifest.json" ]; then
            keras-albert prepare --input "python/$part.txt" \
                --vocab pretrained --output "python/$part"
        fi
    done
    # The rows that the others have.
    sed -e 's/"sequence_length": 128/"sequence_length": 64/' \
        -e 's/"max_predictions": 51/"max_predictions": 20/' \
        -e 's/"masked_lm_prob": 0.4/"masked_lm_prob": 0.15/' \
        pretrained/task.json > before.json
    with_examples_of before.json before
    evaluate continued-before --model before --data python/held_out
    evaluate continued-before-novels --model before --data shards-held-out
    for rate in 0.0001 0.0003 scratch; do
        start="--warm-start pretrained"
        value=$rate
        if [ "$rate" = scratch ]; then
            start="--config pretrained/albert_config.json" value=0.0003
        fi
        if [ ! -e "continued-$rate/report.json" ]; then
            keras-albert pretrain $start --data python/train \
                --validation python/held_out --output "continued-$rate" \
                --steps 1000 --warmup-steps 100 --batch-size 32 \
                --examples.sequence-length 64 \
                --optimizer.optimizer adamw --optimizer.learning-rate "$value"
        fi
        evaluate "continued-$rate" --model "continued-$rate" \
            --data python/held_out
        evaluate "continued-$rate-novels" --model "continued-$rate" \
            --data shards-held-out
    done
}

# SST-2 after continued pretraining on movie reviews. `pretrained` is a model of
# 12,000 steps here: `pretrain --file run.toml --steps 12000`.

reviews() {
    if [ ! -e reviews/held-out.txt ]; then
        python "$here/reviews.py" --reviews aclImdb \
            --without GLUE/SST-2/dev.tsv --output reviews
    fi
    for part in train held-out; do
        if [ ! -e "reviews/shards-$part/manifest.json" ]; then
            keras-albert prepare --input "reviews/$part.txt" \
                --vocab pretrained --output "reviews/shards-$part" \
                --split-sentences en
        fi
    done
    if [ ! -e adapted/report.json ]; then
        keras-albert pretrain --file "$here/reviews.toml"
    fi
    with_examples_of adapted/task.json not-adapted
    for model in adapted not-adapted; do
        evaluate "$model-reviews" --model "$model" \
            --data reviews/shards-held-out
        evaluate "$model-novels" --model "$model" --data shards-held-out
    done
    if [ ! -e split-by-sentences/SST-2/dev.tsv ]; then
        python "$here/sentences_split.py" GLUE/SST-2/train.tsv \
            split-by-sentences/SST-2
    fi
    search SST-2-adapted
    for model in adapted not-adapted; do  # -> SST-2-adapted.json and so on
        finetune "sst-$model" --model "$model" --task SST-2 --train GLUE \
            --seeds 3 --steps 2500 --validate-every 2500 --dropout 0 \
            --sequence-length 64 --learning-rate 1e-4
        evaluate "sst-$model-together" --model "sst-$model" --data GLUE
        evaluate "sst-$model-soup" --model "sst-$model" --data GLUE \
            --average weights
    done
}

# SST-2 after sentences of the reviews that have a rating

sentences() {
    if [ ! -e sentences.jsonl ]; then
        python "$here/review_sentences.py" make --reviews aclImdb \
            --without GLUE/SST-2/dev.tsv --output sentences.new
        mv sentences.new sentences.jsonl
    fi
    held_out teacher-1 1e-4 2500 1250 --model adapted
    label 1 5000 --model teacher-1
    held_out sst-sentences-1-1e-4 1e-4 2500 1250 --model learned-1
    held_out sst-sentences-1-3e-5 3e-5 1500 1500 --model learned-1
    label 2 7400 --model sst-sentences-1 --average weights
}
held_out() {  # held_out OUTPUT RATE STEPS EVERY OPTION ...
    # Learns from a part of SST-2's sentences, and is measured on the others.
    output=$1 rate=$2 steps=$3 every=$4; shift 4
    finetune "$output" --task SST-2 --train split-by-sentences --any-size \
        --steps "$steps" --validate-every "$every" --dropout 0 \
        --sequence-length 64 --learning-rate "$rate" "$@"
}
label() {  # label ROUND STEPS OPTION ...: the options say which model labels
    round=$1 steps=$2; shift 2
    if [ ! -e "chosen-$round.jsonl" ]; then
        if [ ! -e "predicted-$round.jsonl" ]; then
            keras-albert predict "$@" --data sentences.jsonl \
                --columns.text sentence --batch-size 64 \
                --output "predicted-$round.jsonl"
        fi
        python "$here/review_sentences.py" choose \
            --predicted "predicted-$round.jsonl" \
            --output "chosen-$round.new"
        mv "chosen-$round.new" "chosen-$round.jsonl"
    fi
    finetune "learned-$round" --model adapted --dropout 0 \
        --train "chosen-$round.jsonl" --validation none \
        --columns.text sentence --columns.label label \
        --sequence-length 64 --steps "$steps" --learning-rate 3e-4
    finetune "sst-sentences-$round" --model "learned-$round" --task SST-2 \
        --train GLUE --seeds 3 --steps 2500 --validate-every 2500 \
        --dropout 0 --sequence-length 64 --learning-rate 1e-4
    for average in predictions weights; do
        evaluate "sst-sentences-$round-$average" --data GLUE \
            --model "sst-sentences-$round" --average $average
    done
    if [ ! -e "linear-$round.txt" ]; then
        python "$here/review_sentences.py" linear --sst GLUE/SST-2 \
            --chosen "chosen-$round.jsonl" > "linear-$round.new"
        mv "linear-$round.new" "linear-$round.txt"
    fi
}

# SQuAD after questions that are made from news articles. `pretrained` is the model
# of 12,000 steps here, too.

articles_of_news() {
    if [ ! -e articles/train.txt ]; then
        python "$here/articles.py" --wikinews wikinews --reuters reuters21578 \
            --bbc bbc --output articles --without GLUE/MRPC/dev.tsv \
            GLUE/RTE/dev.tsv GLUE/STS-B/dev.tsv GLUE/SST-2/dev.tsv \
            SQUAD/dev-v1.1.json
    fi
}
questions_of_news() {
    articles_of_news
    if [ ! -e cloze/train-v1.1.json ]; then
        python "$here/cloze.py" --input articles/train.txt --output cloze
    fi
    if [ ! -e news/train-v1.1.json ]; then
        python "$here/paraphrases.py" --input articles/train.txt \
            --cloze cloze --output news
    fi
}
cloze() {
    questions_of_news
    of_news of-cloze --model pretrained --depth 4 --train cloze
    of_news of-news --model of-cloze --train news --seed 1
    mkdir -p squad-split
    python "$here/squad_split.py" SQUAD/train-v1.1.json squad-split
    squad_of squad-split-cloze of-cloze squad-split 300 \
        --steps 900 --learning-rate 3e-4
    for rate in 1e-4 3e-4; do
        squad_of "squad-split-$rate" of-news squad-split 300 \
            --steps 900 --learning-rate $rate
    done
    squad_of squad-of-news of-news SQUAD 600 \
        --steps 600 --learning-rate 1e-4 --seeds 3
    squad_of squad-of-news-3e-4 of-news SQUAD 900 \
        --steps 900 --learning-rate 3e-4 --seeds 3
    squad_of squad-of-nothing pretrained SQUAD 900 \
        --steps 900 --learning-rate 3e-4 --seeds 3
}
more() {
    questions_of_news
    if [ ! -e more/dev-v1.1.json ]; then
        python "$here/more_questions.py" --train SQUAD/train-v1.1.json \
            --more new_wiki_v1.0.json amazon_reviews_v1.0.json \
            reddit_v1.0.json --without SQUAD/dev-v1.1.json --output more
    fi
    of_news of-both --model pretrained --depth 4 --train news \
        --steps 2500 --validate-every 2500
    for steps in 2500 8000; do
        of_news squad-of-more-$steps --model of-both --train more \
            --steps $steps --validate-every $steps
    done
}
squad_of() {  # squad_of OUTPUT MODEL DATA EVERY OPTION ...
    output=$1 model=$2 data=$3 every=$4; shift 4
    finetune "$output" --model "$model" --depth 4 --task SQuAD-1.1 \
        --train "$data" --any-size --validate-every "$every" \
        --batch-size 32 --sequence-length 128 --windows.stride 64 \
        --precision mixed_bfloat16 "$@"
}
of_news() {  # of_news OUTPUT OPTION ...
    output=$1; shift
    finetune "$output" --task SQuAD-1.1 --any-size --optimizer muon \
        --steps 4000 --validate-every 4000 --batch-size 32 \
        --learning-rate 5e-4 --sequence-length 128 --windows.stride 64 \
        --precision mixed_bfloat16 "$@"
}

# MRPC and RTE after pairs of sentences of news, with labels that say which share
# of their words is in both. `pretrained` is the model of 12,000 steps here, too.

overlap() {
    articles_of_news
    if [ ! -e overlap-pairs/train.jsonl ]; then
        python "$here/overlap.py" --input articles/train.txt \
            --output overlap-pairs
    fi
    share_words overlap-once --model pretrained
    share_words overlap-twice --model overlap-once --seed 1
    if [ ! -e split ]; then split; fi
    for rate in 1e-5 3e-5 1e-4; do
        mrpc_of "mrpc-split-$rate" overlap-once split 620 103 $rate
    done
    mrpc_of mrpc-split-twice overlap-twice split 620 155 1e-5
    for model in pretrained overlap-once overlap-twice; do
        mrpc_of "mrpc-of-$model" $model GLUE 688 688 1e-5
        for average in predictions weights; do
            evaluate "mrpc-of-$model-$average" --data GLUE \
                --model "mrpc-of-$model" --average $average
        done
    done
    for model in pretrained overlap-twice; do
        finetune "rte-of-$model" --model $model --task RTE --train GLUE \
            --any-size --depth 4 --seeds 8 --steps 312 --validate-every 312 \
            --batch-size 16 --learning-rate 2e-5 --sequence-length 128 \
            --dropout 0 --precision mixed_bfloat16
    done
}
share_words() {  # share_words OUTPUT OPTION ...
    output=$1; shift
    finetune "$output" --task multilabel --train overlap-pairs/train.jsonl \
        --validation overlap-pairs/dev.jsonl --columns.pair pair --depth 4 \
        --optimizer muon --learning-rate 5e-4 --steps 4000 \
        --validate-every 1000 --batch-size 32 --sequence-length 128 \
        --precision mixed_bfloat16 "$@"
}
mrpc_of() {  # mrpc_of OUTPUT MODEL DATA STEPS EVERY RATE: three seeds
    finetune "$1" --model "$2" --train "$3" --steps "$4" \
        --validate-every "$5" --learning-rate "$6" --task MRPC --any-size \
        --depth 4 --seeds 3 --batch-size 16 --sequence-length 128 \
        --dropout 0 --precision mixed_bfloat16
}

# Long texts

long() {
    if [ ! -e authors ]; then
        python "$here/../novels/authors.py" text/train authors
    fi
    for rule in cut mean max; do
        finetune "long-$rule" --model pretrained --train authors/train.jsonl \
            --long-texts "$rule" --sequence-length 128 --steps 500 \
            --batch-size 16 --seeds 3 --learning-rate 1e-4 \
            --validate-every 125
        for seed in 0 1 2; do
            evaluate "long-$rule-$seed" --model "long-$rule/seed-$seed" \
                --data authors/test.jsonl
        done
    done
}

# Search among docstrings, see ../search

docstrings() {
    search=$here/../search/search.py
    if [ ! -e docstrings ]; then
        python "$search" data docstrings
    fi
    of="--data docstrings/held_out.tsv --columns.text question \
        --columns.pair answer --corpus docstrings/corpus.txt"
    evaluate search-mean --task embedding --model pretrained $of
    if [ ! -e search-white ]; then
        keras-albert whiten --model pretrained --pooling idf \
            --data docstrings/corpus.txt --output search-white
    fi
    if [ ! -e search-white-words ]; then
        keras-albert whiten --model pretrained --words 0.5 \
            --data docstrings/corpus.txt --output search-white-words
    fi
    evaluate search-white --task embedding --model search-white $of
    evaluate search-white-words --task embedding \
        --model search-white-words $of
    for start in pretrained search-white; do
        finetune "search-trained-$start" --task embedding --model $start \
            --train docstrings/train.tsv --columns.text question \
            --columns.pair answer --learning-rate 2e-4 --epochs 15 \
            --batch-size 64 --sequence-length 64 --embedding.symmetric
        evaluate "search-trained-$start" --model "search-trained-$start" $of
    done
    if [ ! -e search-both ]; then
        keras-albert whiten --model search-trained-search-white \
            --words 0.5 --data docstrings/corpus.txt --output search-both
    fi
    evaluate search-both --model search-both $of
    for model in search-trained-pretrained search-trained-search-white \
                 search-both tf-idf; do
        python "$search" route $model docstrings > "route-$model.txt"
    done
}

for part in "$@"; do
    "$part"
done
