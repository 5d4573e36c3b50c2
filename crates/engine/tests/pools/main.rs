//! Address pools of an interface: defects of upstream that must not be there, one by one, and random sequences of events
//! against a model of EC2 that is slow and obvious.
//!
//! `POOL_SEQUENCES` says how many random sequences run (100,000 unless told), `POOL_SEED` where to start. A sequence that
//! fails is shortened to the fewest steps that fail, and printed.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "tests read the environment, run threads and report counts; the engine does none of that"
)]

mod defects;
mod ec2;
mod interface;
mod random;
mod world;

use random::Random;
use world::World;

/// Small objects come and go by the thousand.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEQUENCES: u64 = 100_000;
const THREADS: u64 = 2;

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, not a number"))
    })
}

/// Runs a sequence of `steps` steps, and returns what was wrong with the trace of what happened.
fn run(seed: u64, steps: usize, traced: bool) -> Result<(), String> {
    let mut world = World::new(seed, traced);
    let checked = (0..steps)
        .try_for_each(|_| world.step())
        .and_then(|()| world.finish());
    checked.map_err(|wrong| format!("{}\n{wrong}", world.trace()))
}

/// Returns how many steps the sequence of a seed has.
fn length(seed: u64) -> usize {
    10 + Random::new(!seed).below(80)
}

#[test]
fn whatever_happens_no_address_is_given_twice_or_too_early_or_lost_and_no_pod_waits_beside_one() {
    let (first, count) = (number("POOL_SEED", 1), number("POOL_SEQUENCES", SEQUENCES));
    let fails = |seed: &u64| run(*seed, length(*seed), false).is_err();
    let failed = std::thread::scope(|scope| {
        let search = |thread| {
            move || {
                (first..first + count)
                    .filter(|seed| seed % THREADS == thread)
                    .find(fails)
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(search(thread)))
            .collect();
        let found = threads
            .into_iter()
            .filter_map(|thread| thread.join().expect("a search ends"));
        found.min()
    });
    println!("{count} sequences from seed {first}");
    if let Some(seed) = failed {
        let shortest = (0..=length(seed)).find(|steps| run(seed, *steps, false).is_err());
        let steps = shortest.expect("it failed before");
        let wrong = run(seed, steps, true).expect_err("it failed before");
        panic!("seed {seed}, {steps} steps:\n{wrong}");
    }
}
