# The things one does here, each as one word: `just` lists them. A justfile and no `cargo xtask`, because every recipe is one or two commands and a
# crate for them would be one more thing to compile.
#
#   pip install rust-just==1.59.0        # or: cargo install just --locked

# Lists the recipes.
default:
    @just --list --unsorted

# Runs all tests, the end-to-end ones too: they need kubectl, Python 3.10 and node 20 or later on PATH.
test *args:
    cargo test --workspace --locked {{ args }}

# Tests one crate by its folder in crates/, all of it or what a filter names: `just crate engine quantity`.
crate name *args:
    cargo test --manifest-path crates/{{ name }}/Cargo.toml {{ args }}

# Checks format, lints and documentation as CI does.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked

# Replays what kube-scheduler, the VPC resource controller and kube-apiserver answered; `just vectors patch/` prints every difference of those scenarios.
vectors scenarios='':
    cargo test -p mullion-engine --test vectors --test pool_vectors
    {{ if scenarios == '' { '' } else { 'VECTORS=' + quote(scenarios) } }} cargo test -p mullion-apiserver --test it vectors -- --nocapture

# Measures with release builds: a whole cluster, a plan, and the engine alone (docs/performance.md has figures and more to measure).
bench:
    cargo run --release -- bench up --nodes 500 --pods 10000
    cargo run --release -- bench plan
    cargo bench -p mullion-engine

# Fuzzes the named targets, or all, each for so many seconds: `just fuzz 60 api_cel why_case`.
fuzz seconds='60' *targets:
    FUZZ_SECONDS={{ seconds }} scripts/fuzz {{ targets }}

# Runs what takes a night: random clusters against the slow rules, kills of a server, every fuzz target for long.
nightly *targets:
    scripts/nightly {{ targets }}

# Builds the documentation of all crates, private items too: `just docs --open` shows it.
docs *args:
    cargo doc --workspace --no-deps --document-private-items {{ args }}

# Accepts what the snapshot tests of a crate say now, for review by `git diff`: `just snapshots mullion help_of_up`.
snapshots name *args:
    INSTA_UPDATE=always cargo test --manifest-path crates/{{ name }}/Cargo.toml {{ args }}

# Rewrites the answers in the engine's transcripts (crates/engine/testdata/*.txt), for review by `git diff`.
transcripts:
    UPDATE_TRANSCRIPTS=1 cargo test -p mullion-engine --test transcripts

# Writes what the program says into docs/: the answers below the commands of plan.md, the tables of check.md and doctor.md.
record-docs:
    cargo build -p mullion
    scripts/record-docs "${CARGO_TARGET_DIR:-target}/debug/mullion" docs/plan.md
    UPDATE_DOCS=1 cargo test -p mullion --bin mullion of_the_table

# Generates the schema table of the API server (crates/schema/src/table.tsv) from crates/schema/data.
schema:
    scripts/generate-schema.py

# Runs the tests beside kube-apiserver, kube-controller-manager, kube-scheduler and etcd, which Go builds once.
beside *args:
    KUBEBUILDER_ASSETS="$(scripts/upstream)" cargo test -p mullion --test real --locked {{ args }}

# Measures a thousand simulated nodes and twenty thousand pods beside kube-apiserver, with a release build, for minutes.
scale:
    cargo build --release -p mullion
    KUBEBUILDER_ASSETS="$(scripts/upstream)" MULLION_PROGRAM="${CARGO_TARGET_DIR:-$PWD/target}/release/mullion" cargo test -p mullion --test real --locked -- --ignored --nocapture a_thousand_nodes

# Runs the tests beside Karpenter and the VPC resource controller, which Go builds once in about five minutes.
karpenter *args:
    KUBEBUILDER_ASSETS="$(scripts/upstream)" KARPENTER_ASSETS="$(scripts/upstream-karpenter)" cargo test -p mullion --test real --locked karpenter:: {{ args }}

# Runs the tests of the AWS client, whose SDK takes minutes to compile.
aws *args:
    cargo test -p mullion-aws --features sdk --locked {{ args }}

# Runs everything that must be green before main moves.
ci:
    .ci/run
