//! Tests of literals, and of names that are not declared.

use super::*;

#[test]
fn literals_mean_what_they_mean_to_cel_go() {
    for source in [
        r#"'''it's''' == "it's" && '''a''b''' == "a''b" && """a"b""" == 'a"b' && """it's""" == "it's""#,
        r#"r'''a'b\n''' == "a'b\\n" && r"""a"b""" == 'a"b' && r'\d' == '\\d' && R"\\" == '\\\\'"#,
        r"b'\n' == bytes('\n') && b'a\tb' == bytes('a\tb') && b'\'' == bytes('\'') && b'\\d' == bytes(r'\d') && b'\a\b\f\r\v\?\`' == bytes('\a\b\f\r\v\?\`')",
        r#"br'\d' == bytes(r'\d') && bR"\"  == b'\\' && b'''a'b''' == b'a\'b' && b'\xff\377' == b'\XFF\xff' && size(b'\xff') == 1 && size('\xff') == 1"#,
        r"'\X41' == 'A' && b'\X41' == b'A' && '\101' == 'A' && 'ü' == '\u00fc' && '\U0001F600' == '😀'",
        "-0x1F == -31 && -0x8000000000000000 < 0 && 0x1Fu == 31u && 1 - 0x1F == -30",
        "'''a\r\nb\rc''' == 'a\\nb\\nc'",
    ] {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
    for (source, message) in [
        (
            r"'\ud800' == ''",
            "ERROR: <input>:1:1: invalid unicode code point\n",
        ),
        (
            r"'' == '\U00110000'",
            "ERROR: <input>:1:7: invalid unicode code point\n",
        ),
        (
            r"b'\u0041' == b''",
            "ERROR: <input>:1:1: unable to unescape string\n",
        ),
        (
            r"'''it's''' == 1 +",
            "ERROR: <input>:1:18: Syntax error: mismatched input '<EOF>'",
        ),
        (
            "0x8000000000000000 == 1",
            "ERROR: <input>:1:1: invalid int literal\n",
        ),
        (
            r"'\q' == ''",
            "ERROR: <input>:1:1: Syntax error: token recognition error at: ''\\q'",
        ),
    ] {
        let found = run(source).unwrap_err();
        assert!(found.starts_with(message), "{source}: {found}");
    }
}

#[test]
fn reserved_words_name_nothing() {
    for (source, places) in [
        (
            "namespace == 1",
            vec!["1:1: reserved identifier: namespace"],
        ),
        ("self.a == 1 || if", vec!["1:16: reserved identifier: if"]),
        (
            "import.x == void",
            vec![
                "1:1: reserved identifier: import",
                "1:13: reserved identifier: void",
            ],
        ),
        ("for(let) == 1", vec!["1:1: reserved identifier: for"]),
        (".package == 1", vec!["1:1: reserved identifier: package"]),
        (
            "self.l.all(if, true)",
            vec!["1:12: reserved identifier: if"],
        ),
    ] {
        let issues = run(source).unwrap_err();
        let told: Vec<&str> = issues
            .lines()
            .step_by(3)
            .filter_map(|line| line.strip_prefix("ERROR: <input>:"))
            .collect();
        assert_eq!(told, places, "{source}");
    }
    let source = "has(self.m.namespace) || self.l.existsOne(i, v, v == 1) && self.l.exists_one(i, v, v == 1)";
    assert_eq!(run(source), Ok(Value::Bool(true)));
}
