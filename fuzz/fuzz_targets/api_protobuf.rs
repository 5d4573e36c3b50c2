#![no_main]
//! See `wire/questions.rs` of the API server's tests, which ask the same of the corpus and of what is near it.

#[allow(dead_code, reason = "each target asks one of the questions")]
#[path = "../../crates/apiserver/tests/it/wire/questions.rs"]
mod questions;

libfuzzer_sys::fuzz_target!(|input: &[u8]| questions::protobuf(input));
