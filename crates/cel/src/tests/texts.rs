//! Tests of conversions, string functions and string formatting.

use super::*;

#[test]
fn values_become_those_of_other_types() {
    for source in [
        "duration(duration('1h')) == duration('1h') && timestamp(self.t) == self.t && bytes(b'ab') == b'ab' && bytes('ü').size() == 2",
        "[1e6, 123456789.0, 1234567.8, 1.5e-5, 1e21, 100000.0, 1.5].map(d, string(d)) == ['1e+06', '1.23456789e+08', '1.2345678e+06', '1.5e-05', '1e+21', '100000', '1.5']",
        "string(double('inf')) == '+Inf' && string(double('-Infinity')) == '-Inf' && string(double('nan')) == 'NaN' && double('0x1.8p1') == 3.0",
        "string(ip('1.2.3.4')) == '1.2.3.4' && string(cidr('10.0.0.0/8')) == '10.0.0.0/8' && dyn(ip('::1')).family() == 6 && dyn(url('http://a/b')).getHost() == 'a'",
        "dyn(semver('1.2.3')).major() == 1 && dyn(duration('2h')).getHours() == 2 && dyn([old]).unwrapOpt() == [7] && dyn({'a': 1}).size() == 1",
        "double('1_0') == 10.0 && double('1_2.5_0e+1_0') == 12.5e10 && double('0x_1_0p0') == 16.0",
        "timestamp('2024-01-01T1:02:03Z') == timestamp('2024-01-01T01:02:03Z') && timestamp('2024-01-01T00:00:00,5+01:00') == timestamp('2023-12-31T23:00:00.5Z')",
        "int(3.9) == 3 && int(-3.9) == -3 && uint(3.9) == 3u && int(7u) == 7 && uint(7) == 7u && double(7u) == 7.0 && bool('T') && int('-5') == -5",
    ] {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
    for (source, message) in [
        (
            "int(self.s) == 1",
            "type conversion error from 'string' to 'int'",
        ),
        (
            "uint('-' + '1') == 1u",
            "type conversion error from 'string' to 'uint'",
        ),
        (
            "uint('+' + '1') == 1u",
            "type conversion error from 'string' to 'uint'",
        ),
        (
            "double(self.s) == 1.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "double('1__0' + '') == 1.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "double('_1' + '') == 1.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "double('1_.5' + '') == 1.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "timestamp('2024-01-01T00:00:00\\u221201:00' + '') == self.t",
            "type conversion error from 'string' to 'google.protobuf.Timestamp'",
        ),
        (
            "double('1e400' + '') == 1.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "bool(self.s)",
            "type conversion error from 'string' to 'bool'",
        ),
        ("int(self.d * 1e30) == 1", "integer overflow"),
        ("int(double('NaN' + '')) == 1", "integer overflow"),
        (
            "int(self.d * 0.0 - 9223372036854775808.0) == 1",
            "integer overflow",
        ),
        ("uint(-self.a) == 1u", "unsigned integer overflow"),
        ("uint(-self.d) == 1u", "unsigned integer overflow"),
        (
            "string(b'\\377' + b'') == ''",
            "invalid UTF-8 in bytes, cannot convert to string",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
}

#[test]
fn what_is_written_is_converted_before_it_runs() {
    let fault = |source: &str| {
        let program = Program::compile(source, &environment()).expect(source);
        program.fault().map(ToString::to_string)
    };
    for (source, why) in [
        (
            "int('x') == 1",
            "type conversion error from 'string' to 'int'",
        ),
        (
            "self.l.all(x, x > int('z'))",
            "type conversion error from 'string' to 'int'",
        ),
        (
            "uint(-1) == 1u || double('1e400') == 1.0",
            "unsigned integer overflow",
        ),
        ("int(1e30) == 1", "integer overflow"),
        (
            "bool(string(dyn('x')))",
            "type conversion error from 'string' to 'bool'",
        ),
        (
            "string(b'\\xff') == ''",
            "invalid UTF-8 in bytes, cannot convert to string",
        ),
        ("timestamp(253402300800) > self.t", "timestamp overflow"),
        ("int(dyn([1])) == 1", "no such overload: int(list)"),
        (
            "string([1].map(x, int('x'))[0]) == ''",
            "type conversion error from 'string' to 'int'",
        ),
        (
            "{'a': bool(string('x'))}.size() == 1",
            "type conversion error from 'string' to 'bool'",
        ),
        (
            "bool(string(1 in []) + '') || bool(bool('x'))",
            "type conversion error from 'string' to 'bool'",
        ),
        (
            "self.s.matches(string('['))",
            "error parsing regexp: missing closing ]: `[`",
        ),
        (
            "self.s.find(string(b'[')) == '' || self.s.findAll('a', 1) == []",
            "error parsing regexp: missing closing ]: `[`",
        ),
        (
            "dyn(self.l)[dyn(null)] == 1",
            "invalid qualifier type: types.Null",
        ),
        (
            "dyn(self.m)[[1, int('2')]] == 1",
            "invalid qualifier type: *types.baseList",
        ),
        (
            "{timestamp('2024-05-01T10:00:00Z'): 1}[?timestamp('2024-05-01T10:00:00Z')].hasValue()",
            "invalid qualifier type: types.Timestamp",
        ),
        ("{int: 1}[int] == 1", "invalid qualifier type: *types.Type"),
        (
            "{b'a': 1}.size() == 1",
            "internal error: runtime error: hash of unhashable type types.Bytes",
        ),
    ] {
        assert_eq!(fault(source).as_deref(), Some(why), "{source}");
    }
    assert_eq!(
        fault("int('1') == 1 && int(self.s) == 1 && int('a' + 'b') == 1"),
        None
    );
}

#[test]
fn places_in_texts_are_counted_in_characters() {
    for source in [
        "'äbc'.charAt(1) == 'b' && 'abc'.charAt(3) == '' && 'äbc'.substring(1) == 'bc' && 'abc'.substring(3) == '' && 'äbc'.substring(0, 2) == 'äb'",
        "'äbcb'.indexOf('b') == 1 && 'äbcb'.indexOf('b', 2) == 3 && 'abc'.indexOf('a', 9) == -1 && 'abc'.indexOf('', 2) == 2 && 'abc'.indexOf('x') == -1",
        "'äbcb'.lastIndexOf('b') == 3 && 'äbcb'.lastIndexOf('b', 2) == 1 && 'abc'.lastIndexOf('c', 3) == -1 && 'abc'.lastIndexOf('') == 3 && ''.lastIndexOf('a') == -1",
        "'äöäö'.lastIndexOf('äö', 1) == 0 && 'äöäö'.lastIndexOf('öä') == 1 && 'abcabc'.lastIndexOf('abc', 3) == 3",
        "'abc'.split('') == ['a', 'b', 'c'] && 'abc'.split('', 2) == ['a', 'bc'] && 'abc'.split('', 0) == [] && ''.split('') == [] && ''.split(',') == ['']",
        "'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a,b'.split(',', -1) == ['a', 'b'] && 'a,b'.split(',', 0) == []",
        "[dyn(1), dyn('a')].max() == 1 && [dyn(1), dyn('a'), dyn(0)].min() == 0",
    ] {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
    for (source, message) in [
        ("'abc'.charAt(4) == ''", "index out of range: 4"),
        ("'abc'.charAt(-1) == ''", "index out of range: -1"),
        ("'abc'.substring(4) == ''", "index out of range: 4"),
        ("'abc'.substring(-1) == ''", "index out of range: -1"),
        (
            "'abc'.substring(2, 1) == ''",
            "invalid substring range. start: 2, end: 1",
        ),
        ("'abc'.substring(0, 9) == ''", "index out of range: 9"),
        ("'abc'.indexOf('a', -1) == 0", "index out of range: -1"),
        ("'abc'.lastIndexOf('c', -1) == 0", "index out of range: -1"),
        ("[dyn('a'), dyn(1)].join() == ''", "join: invalid input: 1"),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
}

#[test]
fn formats_are_filled_as_cel_go_fills_them() {
    for (source, expected) in [
        ("'%s %d%%'.format(['a', 1])", "a 1%"),
        (
            "'%s'.format([[1, 'a', {'k': [true]}]])",
            r#"[1, "a", {"k":[true]}]"#,
        ),
        ("'%s'.format([duration('1h')])", "3600s"),
        ("'%s'.format([self.t])", "2024-05-01T10:00:00Z"),
        ("'%s %s %s'.format([b'abc', type(1), null])", "abc int null"),
        (
            "'%s %s %s'.format([1e100, 123456789.0, double('inf')])",
            "1e+100 1.23456789e+08 +Inf",
        ),
        (
            "'%s'.format([[1.5, double('-inf')]])",
            r#"[1.500000, "-Inf"]"#,
        ),
        (
            "'%s'.format([{true: 1.5, false: 2u}])",
            "{false:2, true:1.500000}",
        ),
        ("'%s'.format([[duration('1h')]])", r#"[duration("3600s")]"#),
        (
            "'%s'.format([[self.t, b'a', 'a\"b', int]])",
            r#"[timestamp("2024-05-01T10:00:00Z"), b"a", "a\"b", int]"#,
        ),
        (
            "'%b %x %X %o'.format([-5, -1, -255, -8])",
            "-101 -1 -FF -10",
        ),
        (
            "'%b %x %X %o %b'.format([5u, 'hi', b'\\xab', 8u, true])",
            "101 6869 AB 10 1",
        ),
        (
            "'%f %.2f %.0f'.format([12345.678, -1234567.5, 999.0])",
            "12,345.678000 -1,234,567.50 999",
        ),
        (
            "'%f %f %e'.format([double('inf'), 'NaN', '-Infinity'])",
            "∞ NaN -∞",
        ),
        (
            "'%e'.format([1052.032911275])",
            "1.052033\u{202f}×\u{202f}10⁰³",
        ),
        (
            "'%.2e'.format([0.00015])",
            "1.500000\u{202f}×\u{202f}10\u{207b}⁰⁴",
        ),
    ] {
        let expected = Value::String(Arc::new(expected.to_owned()));
        assert_eq!(run(source), Ok(expected), "{source}");
    }
    for (source, message) in [
        (
            "'%d'.format([dyn('a')]) == ''",
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        (
            "'%f'.format(['a']) == ''",
            "error during formatting: fixed-point clause can only be used on doubles, was given string",
        ),
        (
            "'%s'.format([dyn(quantity('1'))]) == ''",
            "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given kubernetes.Quantity",
        ),
        (
            "'%s'.format([dyn([quantity('1')])]) == ''",
            "error during formatting: no formatting function for kubernetes.Quantity",
        ),
        ("'%s %s'.format(dyn([1])) == ''", "index 1 out of range"),
        (
            "('%' + 'z').format([1]) == ''",
            "could not parse formatting clause: unrecognized formatting clause \"z\"",
        ),
        ("('a%' + '').format([1]) == ''", "unexpected end of string"),
        ("('a%' + '').format([]) == ''", "index 0 out of range"),
        (
            "('%' + '.5').format([1.0]) == ''",
            "could not parse formatting clause: error while parsing precision: could not find end of precision specifier",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
    assert_eq!(
        run("('%' + 's').format(['a', 'b']) == 'a'"),
        Ok(Value::Bool(true))
    );
}

#[test]
fn formats_that_are_written_are_checked_before_they_run() {
    let text = "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given";
    for (source, column, message) in [
        (
            "'%d'.format(['a'])",
            14,
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        (
            "'%d'.format([1.0])",
            14,
            "error during formatting: decimal clause can only be used on integers, was given double",
        ),
        (
            "'%f'.format([1])",
            14,
            "error during formatting: fixed-point clause can only be used on doubles, was given int",
        ),
        (
            "'%e'.format([self.l])",
            18,
            "error during formatting: scientific clause can only be used on doubles, was given list",
        ),
        (
            "'%x'.format([1.5])",
            14,
            "error during formatting: only integers, byte buffers, and strings can be formatted as hex, was given double",
        ),
        (
            "'%b'.format(['a'])",
            14,
            "error during formatting: only integers and bools can be formatted as binary, was given string",
        ),
        (
            "'%o'.format([1.5])",
            14,
            "error during formatting: octal clause can only be used on integers, was given double",
        ),
        (
            "'%s'.format([quantity('1')])",
            22,
            &format!("error during formatting: {text} kubernetes.Quantity"),
        ),
        (
            "'%s'.format([[1, {'a': old}]])",
            24,
            &format!("error during formatting: {text} optional_type"),
        ),
        (
            "'%z'.format([1])",
            12,
            "could not parse formatting clause: unrecognized formatting clause \"z\"",
        ),
        (
            "'%5d'.format([1])",
            13,
            "could not parse formatting clause: unrecognized formatting clause \"5\"",
        ),
        (
            "'%.f'.format([1.0])",
            13,
            "could not parse formatting clause: error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing \"\": invalid syntax",
        ),
        ("'%'.format([1])", 11, "unexpected end of string"),
        ("'%s %s'.format(['a'])", 15, "index 1 out of range"),
        ("'%s'.format([])", 12, "index 0 out of range"),
        (
            "'%s'.format(['a', 'b'])",
            12,
            "too many arguments supplied to string.format (expected 1, got 2)",
        ),
        (
            "'%s'.format(['%d'.format([self.s])])",
            31,
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
    ] {
        let issues = Program::compile(source, &environment())
            .expect_err(source)
            .to_string();
        let expected = format!("ERROR: <input>:1:{column}: {message}\n");
        assert!(issues.starts_with(&expected), "{source}: {issues}");
    }
    for source in [
        "'%s %s'.format([self.any, self.l])",
        "'%d'.format(self.l)",
        "'%f'.format(['NaN'])",
        "'%.3f'.format([self.d])",
    ] {
        Program::compile(source, &environment()).expect(source);
    }
    // Only the arguments of `format` may be lists of mixed types.
    Program::compile("'%s'.format([[1, 'a'].size()])", &environment())
        .expect_err("a list of two types");
}
