#![no_main]
//! A line of `mullion why --cases`: answered, or refused with a sentence.

#![allow(dead_code, reason = "the modules serve the whole of `mullion why`")]

use std::sync::LazyLock;

use mullion_engine::{Cluster, Options};

#[path = "../../crates/mullion/src/failure.rs"]
mod failure;

#[path = "../../crates/mullion/src/input.rs"]
mod input;

#[path = "../../crates/mullion/src/lines.rs"]
mod lines;

#[path = "../../crates/mullion/src/near.rs"]
mod near;

#[path = "../../crates/mullion/src/why"]
mod why {
    mod answer;
    mod case;
    pub(super) mod cases;
    mod images;
    mod kinds;
    mod nulls;
    mod object;
    mod pod_facts;
    mod pod_owner;
    mod readiness;
    mod start;
    mod state;
    mod unused;

    pub(super) fn line(line: &[u8], empty: &mullion_engine::Cluster) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        cases::answer_to(line, empty, &mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }
}

static EMPTY: LazyLock<Cluster> = LazyLock::new(|| Cluster::new(Options::default()));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match why::line(input, &EMPTY) {
        Ok(text) => {
            drop(serde_json::from_slice::<serde_json::Value>(&text).expect("an answer is JSON"))
        }
        Err(why) => assert!(!why.is_empty()),
    }
});
