//! Implements `mullion why --cases`: it explains pods of many small clusters, one per line.

use std::{fmt, path::Path};

use mullion_engine::{Cluster, ModelError};

use super::{
    answer::{self, Record},
    case::Case,
};
use crate::{failure::Failure, lines};

/// Answers every line of a file, or of stdin if the path is `-`.
pub(super) fn run(path: &Path, empty: &Cluster) -> Result<(), Failure> {
    let form = r#"a line a case: {"items": [nodes, pods, ...], "pod": {...}}"#;
    lines::answer_all(path, form, || {
        let empty = empty.clone();
        move |line: &[u8], text: &mut Vec<u8>| answer_to(line, &empty, text)
    })
}

/// The reason why a case has no answer.
#[derive(Debug)]
pub(super) enum CaseError {
    /// The line is not JSON of its type.
    Form(serde_json::Error),
    /// An object is malformed; the text names the object and the cause.
    Object(String),
    /// The answer has no JSON form.
    Answer(serde_json::Error),
    /// An object has an invalid amount.
    Model(ModelError),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaseError::Form(error) => f.write_str(&lines::syntax_error(error)),
            CaseError::Object(why) => f.write_str(why),
            CaseError::Answer(error) => write!(f, "{error}"),
            CaseError::Model(error) => write!(f, "{error}"),
        }
    }
}

/// Appends the answer to a line to `text`.
pub(super) fn answer_to(line: &[u8], empty: &Cluster, text: &mut Vec<u8>) -> Result<(), CaseError> {
    let read = Case::read(line, empty);
    let Case { mut state, pod } = read.map_err(|error| {
        let object = Case::find_invalid_object(line, empty);
        object.map_or(CaseError::Form(error), CaseError::Object)
    })?;
    if let Some(message) = answer::undecided(&state.cluster, &pod) {
        let record = Record {
            message: Some(message),
            ..Record::default()
        };
        return serde_json::to_writer(text, &record).map_err(CaseError::Answer);
    }
    // Without priorities no preemption is possible, and the recorded answers do not mention it.
    let with_preemption = state.has_priorities || pod.template.priority != 0;
    let asked = answer::ask(&mut state.cluster, &pod, with_preemption);
    let asked = asked.map_err(CaseError::Model)?;
    let cluster = &state.cluster;
    let name_of = |key: &str| cluster.pod_name(key).unwrap_or(key).to_owned();
    let record = answer::record(cluster, &asked, name_of);
    serde_json::to_writer(text, &record).map_err(CaseError::Answer)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};

    use mullion_engine::Options;
    use serde_json::json;

    use super::*;

    fn pass_through(
        input: impl Read,
        output: impl Write + Send,
        workers: usize,
        empty: &Cluster,
    ) -> io::Result<(usize, usize)> {
        lines::pass_through(input, output, workers, &|| {
            let empty = empty.clone();
            move |line: &[u8], text: &mut Vec<u8>| answer_to(line, &empty, text)
        })
    }

    /// A writer that accepts this many writes and then fails.
    struct FailingWriter(usize);

    impl Write for FailingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn case(node: usize) -> String {
        format!(
            r#"{{"items":[{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"n{node}"}}}}],"pod":{{}}}}"#
        )
    }

    #[test]
    fn answers_come_in_the_order_of_their_lines_whoever_is_done_first() {
        let lines = 20_000;
        let mut input = String::new();
        for line in 0..lines {
            match line % 1000 {
                7 => input.push_str("   \n"),
                8 => input.push_str("nothing\n"),
                _ => input.push_str(&(case(line) + "\n")),
            }
        }
        let mut output = Vec::new();
        let (read, wrong) = pass_through(
            input.as_bytes(),
            &mut output,
            3,
            &Cluster::new(Options::default()),
        )
        .expect("read");
        assert_eq!((read, wrong), (lines - lines / 1000, lines / 1000));
        let output = String::from_utf8(output).expect("JSON");
        let mut answers = output.lines();
        for line in (0..lines).filter(|line| line % 1000 != 7) {
            let said = answers.next().expect("an answer a line");
            let wanted = match line % 1000 {
                8 => format!("line {}: ", line + 1),
                _ => format!(r#""name":"n{line}""#),
            };
            assert!(said.contains(&wanted), "{said}");
        }
        assert_eq!(answers.next(), None);
    }

    fn said(line: &str) -> serde_json::Value {
        let mut text = Vec::new();
        let empty = Cluster::new(Options::default());
        answer_to(line.as_bytes(), &empty, &mut text).expect("an answer");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn a_pod_that_goes_or_has_gone_is_passed_over() {
        let asked = |rest: &str| {
            let pod = format!(r#""pod":{{"metadata":{{"name":"p","namespace":"ns"{rest}}}"#);
            said(&case(1).replace(r#""pod":{}"#, &pod))
        };
        let deleted = asked(r#","deletionTimestamp":"2026-01-27T10:00:00Z"}"#);
        let expected =
            json!({"nodes": [], "best": null, "message": "skip schedule deleting pod: ns/p"});
        assert_eq!(deleted, expected);
        let finished = asked(r#"},"status":{"phase":"Succeeded"}"#);
        assert_eq!(finished["message"], "skip finished pod: ns/p");
    }

    #[test]
    fn a_pod_that_has_a_node_or_gates_or_another_scheduler_is_not_decided_about() {
        let asked = |spec: &str| {
            let pod = format!(
                r#""pod":{{"metadata":{{"name":"p","namespace":"ns"}},"spec":{{{spec}}}}}"#
            );
            let said = said(&case(1).replace(r#""pod":{}"#, &pod));
            assert_eq!((&said["nodes"], &said["best"]), (&json!([]), &json!(null)));
            said["message"].as_str().expect("why").to_owned()
        };
        assert_eq!(
            asked(r#""nodeName":"n2""#),
            "skip assigned pod: ns/p is on node n2"
        );
        assert_eq!(
            asked(r#""schedulingGates":[{"name":"quota"}]"#),
            "Scheduling is blocked due to non-empty scheduling gates"
        );
        assert_eq!(
            asked(r#""schedulerName":"packing""#),
            r#"profile not found for scheduler name "packing""#
        );
    }

    #[test]
    fn room_promised_to_a_pod_that_has_finished_is_free() {
        let fits = |phase: &str| {
            let node = r#"{"kind":"Node","metadata":{"name":"n1"},"status":{"allocatable":{"cpu":"1","pods":"9"}}}"#;
            let spec = r#""spec":{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#;
            let status = format!(r#""status":{{"phase":"{phase}","nominatedNodeName":"n1"}}"#);
            let other = format!(
                r#"{{"kind":"Pod","metadata":{{"name":"o","namespace":"ns"}},{spec},{status}}}"#
            );
            let line = format!(
                r#"{{"items":[{node},{other}],"pod":{{"metadata":{{"name":"p","namespace":"ns"}},{spec}}}}}"#
            );
            said(&line)["best"] == json!(["n1"])
        };
        assert!(!fits("Pending"));
        assert!(fits("Failed") && fits("Succeeded"));
    }

    #[test]
    fn a_reader_that_has_seen_enough_ends_it() {
        let input = (case(1) + "\nnothing\n").repeat(20_000);
        let ends = pass_through(
            input.as_bytes(),
            FailingWriter(2),
            2,
            &Cluster::new(Options::default()),
        );
        assert_eq!(ends.expect("read").1, 0);
    }

    /// A fuzz target runs the same check for longer.
    #[test]
    fn any_line_is_answered_or_refused_with_a_sentence() {
        const WORDS: [&str; 6] = ["", "null", "-1", "[]", "\"\"", "9223372036854775807"];
        let empty = Cluster::new(Options::default());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/why_case");
        let files = std::fs::read_dir(folder).expect("the corpus is there");
        let mut paths: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
        paths.sort();
        let mut bits = 1_usize;
        for path in paths {
            let line = std::fs::read(path).expect("readable");
            let mut text = Vec::new();
            answer_to(&line, &empty, &mut text).expect("what is kept is answered");
            for _ in 0..300 {
                let mut line = line.clone();
                for _ in 0..3 {
                    bits = bits
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let from = (bits >> 33) % line.len();
                    let to = line.len().min(from + (bits >> 20) % 9);
                    let word = WORDS[(bits >> 40) % WORDS.len()].bytes();
                    line.splice(from..to, word);
                }
                if let Err(why) = answer_to(&line, &empty, &mut text) {
                    let why = why.to_string();
                    assert!(why.contains(' '), "{why}");
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_names_no_other_line() {
        let input = "\n{\"items\":[\n{\"items\":[{]\n";
        let mut output = Vec::new();
        let empty = Cluster::new(Options::default());
        pass_through(input.as_bytes(), &mut output, 1, &empty).expect("read");
        let said = String::from_utf8(output).expect("JSON");
        let lines: Vec<_> = said.lines().collect();
        assert!(
            lines[0].starts_with(r#"{"error":"line 2: items[0]: "#),
            "{said}"
        );
        assert!(
            lines[1].starts_with(r#"{"error":"line 3: items[0]: "#),
            "{said}"
        );
        let at = |line: &&str| line.contains(" at column ") && !line.contains(" at line ");
        assert!(lines.iter().all(at), "{said}");
    }

    #[test]
    fn texts_that_are_not_utf_8_are_told_where_they_are() {
        let mut input = case(1).into_bytes();
        let name = input.iter().rposition(|byte| *byte == b'1').expect("n1");
        input[name] = 0xff;
        let mut output = Vec::new();
        let ends = pass_through(&*input, &mut output, 1, &Cluster::new(Options::default()));
        assert_eq!(ends.expect("read"), (1, 1));
        let said = String::from_utf8(output).expect("JSON");
        assert!(said.starts_with(r#"{"error":"line 1: "#), "{said}");
    }
}
