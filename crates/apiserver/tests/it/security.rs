//! The limits that SECURITY.md states are those of the code: each number stands in its row and in the line that makes it so.

use std::{collections::HashMap, path::Path};

const SECURITY: &str = include_str!("../../../../SECURITY.md");

/// Rows without a number; `foreign_names_and_pages_are_refused` holds one, and the program's tests the other.
const WITHOUT_NUMBERS: [&str; 2] = ["| `Host` and `Origin`", "| open files"];

/// What a row is about, what it says, the file that decides so, and the line in it.
const STATED: [(&str, &str, &str, &str); 39] = [
    (
        "connections in the TLS handshake",
        "256, ",
        "limits.rs",
        "handshakes: 256,",
    ),
    (
        "connections in the TLS handshake",
        "10 s each",
        "limits.rs",
        "handshake: Duration::from_secs(10),",
    ),
    (
        "connections of users",
        "4,000 ",
        "limits.rs",
        "users: 4000,",
    ),
    (
        "connections of users",
        "fewer than 6,016 files",
        "limits.rs",
        "open_files / 4 * 3",
    ),
    (
        "connections of administrators",
        "256 ",
        "limits.rs",
        "administrators: 256,",
    ),
    (
        "first request on a connection",
        "10 s after",
        "limits.rs",
        "first_request: Duration::from_secs(10),",
    ),
    (
        "connection without a request",
        "90 s",
        "limits.rs",
        "idle: Duration::from_secs(90),",
    ),
    (
        "HTTP/2 client that does not answer a ping",
        "every 30 s",
        "listen.rs",
        "PING_EVERY: Duration = Duration::from_secs(30);",
    ),
    (
        "HTTP/2 client that does not answer a ping",
        "| 15 s",
        "listen.rs",
        "PING_PATIENCE: Duration = Duration::from_secs(15);",
    ),
    (
        "requests on one HTTP/2 connection",
        "1,000 at a time",
        "listen.rs",
        "STREAMS_PER_CONNECTION: u32 = 1000;",
    ),
    (
        "requests of users that are answered",
        "600; ",
        "limits.rs",
        "requests: 600,",
    ),
    (
        "requests of users that are answered",
        "10,000 wait",
        "limits.rs",
        "waiting: 10_000,",
    ),
    (
        "requests of users that are answered",
        "15 s each",
        "limits.rs",
        "patience: Duration::from_secs(15),",
    ),
    (
        "a request, from its head",
        "| 60 s",
        "limits.rs",
        "request: Duration::from_secs(60),",
    ),
    (
        "an answer that is not read",
        "| 60 s",
        "limits.rs",
        "request: Duration::from_secs(60),",
    ),
    (
        "a body |",
        "3 MiB",
        "limits.rs",
        "BODY_BYTES: usize = 3 * 1024 * 1024;",
    ),
    (
        "an object that is stored",
        "1.5 MiB",
        "http/write/request_limit.rs",
        "MAX_REQUEST_BYTES: usize = 3 << 19;",
    ),
    (
        "objects (braces)",
        "250,000",
        "../../schema/src/decode.rs",
        "MAX_OBJECTS: usize = 250_000;",
    ),
    (
        "an object with its defaults",
        "32 MiB; ",
        "http/write/request_limit.rs",
        "MAX_JSON_BYTES: usize = 32 << 20;",
    ),
    (
        "an object with its defaults",
        "3 MiB of a custom",
        "http/write/request_limit.rs",
        "MAX_CUSTOM_JSON_BYTES: usize = 3 << 20;",
    ),
    (
        "defaults of one custom resource",
        "3 MiB",
        "crd/defaults.rs",
        "MAX_DEFAULT_BYTES: usize = 3 << 20;",
    ),
    (
        "levels of objects and lists",
        "100",
        "../../schema/src/decode/depth.rs",
        "LIMIT: usize = 100;",
    ),
    (
        "levels of objects and lists",
        "100",
        "../../schema/src/proto.rs",
        "MAX_DEPTH: u32 = 100;",
    ),
    (
        "warnings of one answer",
        "4,096 characters",
        "../../kinds/src/request/warnings.rs",
        "MAX_CHARS: usize = 4 * 1024;",
    ),
    (
        "warnings of one answer",
        "256 of each",
        "../../kinds/src/request/warnings.rs",
        "MAX_CHARS_WHEN_CUT: usize = 256;",
    ),
    (
        "unknown and duplicate fields",
        "100",
        "../../schema/src/decode.rs",
        "MAX_PROBLEMS: usize = 100;",
    ),
    (
        "causes of one refusal",
        "16 MiB",
        "../../kube-text/src/field.rs",
        "MAX_ERROR_BYTES: usize = 16 << 20;",
    ),
    (
        "comparisons of lines",
        "2,000,000",
        "../../kinds/src/podspec/difference.rs",
        "2_000_000",
    ),
    (
        "a body of which nothing comes",
        "10 s",
        "limits.rs",
        "body_idle: Duration::from_secs(10),",
    ),
    (
        "bodies that users' requests",
        "10,000",
        "limits.rs",
        "waiting: 10_000,",
    ),
    (
        "bodies held for users' requests",
        "256 MiB",
        "limits.rs",
        "body_bytes: 256 << 20,",
    ),
    (
        "bodies held for users' requests",
        "first 64 KiB",
        "http/arrival.rs",
        "FREE: usize = 64 * 1024;",
    ),
    (
        "requests with bodies above",
        "64 KiB",
        "http/arrival.rs",
        "FREE: usize = 64 * 1024;",
    ),
    (
        "requests with bodies above",
        "more than 2,000 objects",
        "http/running.rs",
        "MANY: usize = 2000;",
    ),
    (
        "requests with bodies above",
        "as there are processors",
        "limits.rs",
        "workers: std::thread::available_parallelism()",
    ),
    (
        "large answers to users",
        "64 MiB together",
        "limits.rs",
        "answer_bytes: 64 << 20,",
    ),
    (
        "large answers to users",
        "pieces of 32 KiB",
        "http/piece.rs",
        "PIECE: usize = 32 * 1024;",
    ),
    (
        "large answers to users",
        "count 1 MiB",
        "http/list.rs",
        "PIECES: usize = 1024 * 1024;",
    ),
    (
        "watches, followed logs and streams",
        "10,000",
        "limits.rs",
        "streams_per_user: 10_000,",
    ),
];

#[test]
fn the_limits_of_security_md_are_those_of_the_code() {
    let (_, limits) = SECURITY.split_once("## Limits").expect("a section");
    let rows: Vec<&str> = limits
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(2)
        .filter(|row| !WITHOUT_NUMBERS.iter().any(|own| row.starts_with(own)))
        .collect();
    let mut stated: HashMap<&str, bool> = rows.iter().map(|row| (*row, false)).collect();
    let mut wrong = Vec::new();
    for (start, says, file, line) in STATED {
        let row = rows
            .iter()
            .find(|row| row.starts_with(&format!("| {start}")));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        let source = std::fs::read_to_string(&source).expect("the source is there");
        match row {
            Some(row) if row.contains(says) && source.contains(line) => {
                stated.insert(row, true);
            }
            Some(row) => wrong.push(format!(
                "{says:?} is {line:?} in {file}, and the row is {row}"
            )),
            None => wrong.push(format!("no row is about {start}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unheld: Vec<_> = stated.into_iter().filter(|(_, held)| !held).collect();
    assert!(unheld.is_empty(), "rows that nothing holds: {unheld:?}");
}
