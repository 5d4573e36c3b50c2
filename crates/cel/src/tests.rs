//! Tests of what expressions evaluate to, and of the errors of invalid ones.

mod literals;
mod maps;
mod mistakes;
mod optionals;
mod texts;

use std::{collections::BTreeMap, sync::Arc};

use super::*;

fn environment() -> Environment {
    let fields = [
        ("a", Type::Int),
        ("d", Type::Double),
        ("s", Type::String),
        ("l", Type::list(Type::Int)),
        ("m", Type::map(Type::String, Type::String)),
        ("any", Type::Dyn),
        ("t", Type::Timestamp),
    ];
    let fields = fields.map(|(name, kind)| (name.to_owned(), kind));
    let object = Object {
        name: "self".to_owned(),
        fields: BTreeMap::from(fields),
        open: false,
    };
    Environment::default()
        .with("self", Type::Object(Arc::new(object)))
        .with("old", Type::optional(Type::Int))
}

fn me() -> Value {
    let source = r#"{"a": 3, "d": 1.5, "s": "web-1", "l": [1, 2, 3], "m": {"k": "v"}, "any": 5, "t": timestamp("2024-05-01T10:00:00Z")}"#;
    let program = Program::compile(
        &source
            .replace(r#""any": 5"#, r#""any": dyn(5)"#)
            .replace(": 3,", ": dyn(3),"),
        &Environment::default(),
    );
    program
        .expect("the test's object is CEL")
        .evaluate(&[], &mut Budget::default())
        .expect("it has a value")
}

fn run(source: &str) -> Result<Value, String> {
    let program = Program::compile(source, &environment()).map_err(|issues| issues.to_string())?;
    let old = some(Value::Int(7));
    program
        .evaluate(&[("self", me()), ("old", old)], &mut Budget::default())
        .map_err(|failure| failure.to_string())
}

#[test]
fn a_variable_with_a_dot_is_hidden_by_a_macros_own() {
    let environment = environment()
        .with("x.y", Type::Int)
        .with("x", Type::map(Type::String, Type::Int));
    let empty = Value::Map(std::collections::HashMap::<String, Value>::new().into());
    for (source, expected) in [
        ("x.y == 1", true),
        ("has(x.y)", false),
        ("[{'y': 2}].all(x, x.y == 2)", true),
        ("[{'y': 2}].exists(z, x.y == 1 && z.y == 2)", true),
    ] {
        let program = Program::compile(source, &environment).expect(source);
        let variables = [("x.y", Value::Int(1)), ("x", empty.clone())];
        let result = program.evaluate(&variables, &mut Budget::default());
        assert_eq!(result, Ok(Value::Bool(expected)), "{source}");
    }
}

#[test]
fn what_is_deep_is_run_and_what_is_too_deep_is_refused() {
    type Source = fn(usize) -> String;
    let sources: [Source; 10] = [
        |n| format!("{}1 > 0", "1 + ".repeat(n)),
        |n| format!("{}0 < 1", "1 * ".repeat(n)),
        |n| format!("{}true", "true == ".repeat(n)),
        |n| format!("'a'{} == 'a'", ".trim()".repeat(n)),
        |n| format!("!has(self.any{}.b)", ".a".repeat(n)),
        |n| format!("!self.any{}.hasValue()", ".?a".repeat(n)),
        |n| format!("{}1{}.size() == 1", "[".repeat(n), "]".repeat(n)),
        |n| format!("{}true{}", "(".repeat(n), ")".repeat(n)),
        |n| format!("{}true", "true ? true : ".repeat(n)),
        |n| format!("{}true", "[1].all(x, ".repeat(n)) + &")".repeat(n),
    ];
    let compile = |source: &str| Program::compile(source, &environment());
    for (index, source) in sources.into_iter().enumerate() {
        let deep = compile(&source(200)).unwrap_or_else(|issues| panic!("{index}: {issues}"));
        let variables = [("self", me())];
        deep.most_cost(&environment(), &Shape::default());
        // The result does not matter, only that the evaluation terminates.
        let _ = deep.evaluate(&variables, &mut Budget::default());
        for levels in [300, 5_000] {
            let refused = compile(&source(levels))
                .expect_err("it is too deep")
                .to_string();
            let why = "ERROR: <input>:-1:0: expression recursion limit exceeded: 250";
            assert_eq!(refused, why, "{index}, {levels}");
        }
        let refused = compile(&source(60_000))
            .expect_err("it is too long")
            .to_string();
        assert!(
            refused.starts_with(
                "ERROR: <input>:-1:0: expression code point size exceeds limit: size: "
            ),
            "{index}: {}",
            &refused[..100]
        );
    }
    // Two rules, neither of which is nested too deeply.
    let both = |ternaries: usize| {
        let (before, fields) = ("true ? true : ".repeat(ternaries), ".a".repeat(100));
        format!("{before}has(self.any{fields})")
    };
    compile(&both(149)).expect("it is just deep enough");
    let refused = compile(&both(150)).expect_err("it is too deep").to_string();
    assert_eq!(refused, "ERROR: <input>:-1:0: max recursion depth exceeded");
    // A chain, which does not nest.
    let long = format!("{}true", "true && ".repeat(10_000));
    assert_eq!(run(&long), Ok(Value::Bool(true)));
}

#[test]
fn patches_are_made_where_they_are_meant() {
    let patches = environment().with_patches();
    let made = |source: &str| {
        let program = Program::compile(source, &patches).map_err(|issues| issues.to_string())?;
        let value = program.evaluate(&[("self", me())], &mut Budget::default());
        Ok::<_, String>(value.expect("it has a value"))
    };
    let source = "Object{spec: Object.spec{replicas: self.a, ?paused: optional.none(), l: [Object.spec.l{n: 1.0}], m: {'k': b'x'}}}";
    let value = made(source).expect("it is an object");
    let expected =
        serde_json::json!({"spec": {"replicas": 3, "l": [{"n": 1}], "m": {"k": "eA=="}}});
    assert_eq!(to_json(&value), Ok(expected));
    let checked = |source: &str| {
        let value = made(source).expect("it is an object");
        message(&value).expect("it is an object").check_names()
    };
    assert_eq!(checked(source), Ok(()));
    assert_eq!(
        checked("Object{spec: Object.status{}, list: [Object{}]}")
            .unwrap_err()
            .to_string(),
        "unexpected type name \"Object\", expected \"Object.list\", which matches field name path from root Object type\n\
         unexpected type name \"Object.status\", expected \"Object.spec\", which matches field name path from root Object type"
    );
    let source = "[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('x/y~'), value: Object.a{b: [1]}}]";
    let expected = serde_json::json!([{"op": "add", "path": "/a/x~1y~0", "value": {"b": [1]}}]);
    assert_eq!(to_json(&made(source).expect("it is a patch")), Ok(expected));
    let holds = "has(Object{a: 1}.a) && !has(Object{a: 1}.b) && Object{a: 1} == Object{a: 1} && Object{a: 1} != Object{a: 2}";
    assert_eq!(made(holds), Ok(Value::Bool(true)));
    for (source, why) in [
        (
            "JSONPatch{op: 1}",
            "1:13: expected type of field 'op' is 'string' but provided type is 'int'",
        ),
        ("JSONPatch{what: 1}", "1:15: undefined field 'what'"),
        (
            "Thing{}",
            "1:6: undeclared reference to 'Thing' (in container '')",
        ),
    ] {
        let found = made(source).unwrap_err();
        assert!(found.contains(why), "{found}");
    }
    let refused = Program::compile("Object{}", &environment()).unwrap_err();
    let why = "undeclared reference to 'Object' (in container '')";
    assert!(refused.to_string().contains(why), "{refused}");
    let refused = Program::compile("jsonpatch.escapeKey('x')", &environment()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("undeclared reference to 'jsonpatch'"),
        "{refused}"
    );
}

#[test]
fn expressions_hold() {
    for source in [
        "self.a == 3 && self.a + 1 > 3 && -self.a < 0 && 7 / 2 == 3 && 7 % 4 == 3",
        "self.a < 3.5 && 3u <= self.a && self.d * 2.0 == 3.0",
        "self.s.startsWith('web') && self.s.matches('^[a-z]+-[0-9]$') && self.s.size() == 5 && size(self.s) == 5",
        "self.l.all(x, x > 0) && self.l.exists(x, x == 2) && self.l.exists_one(x, x == 3) && !self.l.exists(x, x > 3)",
        "self.l.map(x, x * 2) == [2, 4, 6] && self.l.filter(x, x != 2) == [1, 3] && self.l.map(x, x > 1, x + 10) == [12, 13]",
        "self.l.all(i, x, x == i + 1) && self.m.all(k, v, k == 'k' && v == 'v')",
        "self.l.transformList(i, x, i * x) == [0, 2, 6] && self.m.transformMap(k, v, v + k) == {'k': 'vk'}",
        "has(self.m.k) && !has(self.m.z) && 'k' in self.m && 2 in self.l && self.m['k'] == 'v' && self.l[1] == 2",
        "self.a > 5 ? false : self.a > 2 ? true : false",
        "false && self.m.z == '' || self.l[9] == 1 || true",
        "type(self.any) == int && type(self.s) == string && type(self.t) == google.protobuf.Timestamp && type(null) == null_type",
        "old.hasValue() && old.value() == 7 && old.orValue(1) == 7 && optional.none().orValue(1) == 1",
        "self.?m.?k.orValue('x') == 'v' && self.m.?z.orValue('x') == 'x' && self.m[?'k'].value() == 'v' && !self.l[?9].hasValue()",
        "old.optMap(v, v + 1).value() == 8 && optional.none().optMap(v, v + 1).hasValue() == false",
        "[1, ?old, ?optional.none()] == [1, 7] && {?'a': old} == {'a': 7}",
        "self.l.first().value() == 1 && self.l.last() == optional.of(3) && [old, optional.none()].unwrapOpt() == [7] && optional.unwrap([old]) == [7]",
        "timestamp('9999-12-31T23:59:59.999999999Z') - timestamp('9999-01-01T00:00:00Z') < duration('9000h') && timestamp(-62135596800) == timestamp('0001-01-01T00:00:00Z')",
        "duration('2562047h47m16.854775807s') + duration('-1ns') < duration('2562047h47m16.854775807s') && int(duration('-9223372036854775808ns')) < 0 && int(duration('1s')) == 1000000000 && int(self.t) == 1714557600",
        "duration(1500000000) == duration('1.5s') && duration('+.5s') == duration('500ms') && duration('1h1m1s').getMinutes() == 61 && duration('10\u{b5}s') == duration('10us')",
        "self.t.getHours('99:30') == 13 && self.t.getDate('99:30') == 5 && self.t.getMinutes('-1:5') == 55 && self.t.getHours('+3:00') == 13 && self.t.getHours('Local') == 10",
        "quantity('1Gi').isGreaterThan(quantity('500Mi')) && isQuantity('100m') && !isQuantity('x')",
        "url('https://a.example:8443/x').getHost() == 'a.example:8443' && ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.2.3.4')",
        "[duration('1m'), duration('1s')].sum() == duration('61s')",
        "string(true) == 'true' && string(duration('1h2m3s4ms')) == '3723.004s' && string(self.t) == '2024-05-01T10:00:00Z'",
        "string(timestamp('2011-08-18T19:03:37.010+01:00')) == '2011-08-18T19:03:37.01+01:00'",
        "timestamp('2011-08-18T19:03:37.010+01:00').getHours() == 18 && timestamp('2011-08-18T19:03:37.010+01:00').getHours('02:00') == 20",
        "self.t.getHours('UTC') == 10 && self.t.getHours('') == 10 && self.t.getHours('-05:30') == 4 && self.t.getHours('America/New_York') == 6 && self.t.getDayOfWeek() == 3",
        "self.t.getMonth() == 4 && self.t.getDayOfYear() == 121 && self.t.getDayOfMonth() == 0 && self.t.getMilliseconds() == 0",
        "sets.contains([1, 2, 3], [1, 2]) && self.l.sum() == 6 && self.l.isSorted() && self.l.max() == 3",
        "self.t < timestamp('2025-01-01T00:00:00Z') && self.t + duration('1h') > self.t && self.t.getFullYear() == 2024",
        "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'x'.format([]) == 'x' && 'AB'.lowerAscii() == 'ab'",
        "!format.dns1123Label().validate('ok').hasValue() && format.dns1123Label().validate('Not').hasValue()",
        "'aaa'.replace('a', 'b', -1) == 'bbb' && '%.3f'.format([1.0]) == '1.000' && [1u, 2u].sum() == 3u && [1.5, 2.5].sum() == 4.0",
        "quantity('1e40').isGreaterThan(quantity('1n')) && quantity('1G').add(1).sub(quantity('1G')).asInteger() == 1 && quantity('1').compareTo(quantity('1000m')) == 0",
        "quantity('1.5k').isInteger() && !quantity('1000m').isInteger() && !quantity('1.5Ki').isInteger() && !quantity('9223372036854775808').isInteger() && sign(quantity('-1')) == -1 && sign(quantity('0')) == 0",
        "quantity('50.703k').asApproximateFloat() == 50703.0 && quantity('2000k') == quantity('2M') && type(quantity('1')) == kubernetes.Quantity && !isQuantity(' 1')",
        r#"format.uri().validate('http://a:b/').value() == ['parse "http://a:b/": invalid port ":b" after host']"#,
        "format.uuid() == format.uuid() && format.uuid() != format.uri() && format.byte().validate('aGVsbG8').value() == ['invalid base64']",
        "!format.dns1123SubdomainPrefix().validate('a.prefix.-').hasValue() && format.dns1035LabelPrefix().validate('1a-').hasValue()",
        "format.named('uuid').hasValue() && format.named('uuid').value().validate('x').hasValue() && !format.named('x').hasValue()",
        "string(self.a) == '3' && int('12') == 12 && double(self.a) == 3.0 && bool('true') && string(1.5) == '1.5'",
        "'\\u00fc' == 'ü' && r'\\d' == '\\\\d' && b'ab'.size() == 2 && '''x\ny''' == 'x\\ny' && 0x1F == 31 && 1e3 == 1000.0",
        "!has(dyn(null).x) && !has(dyn('a').x) && dyn(null).?x == optional.none()",
        "lists.range(3) == [0, 1, 2] && lists.range(0) == [] && self.l.slice(1, 3) == [2, 3] && self.l.slice(3, 3) == [] && self.l.reverse() == [3, 2, 1]",
        "[[1, 2], [], [3]].flatten() == [1, 2, 3] && [dyn(1), dyn([2, dyn([3, dyn([4])])])].flatten(1) == [dyn(1), dyn(2), dyn([3, dyn([4])])]",
        "[dyn(1), dyn([2, dyn([3, dyn([4])])])].flatten(2) == [dyn(1), dyn(2), dyn(3), dyn([4])] && self.l.flatten(0) == self.l && dyn(self.l).flatten() == self.l",
        "[1, 2, 2, 3, 3, 1].distinct() == [1, 2, 3] && [dyn(1), dyn(1u), dyn('b'), dyn(1.0), dyn('b')].distinct() == [dyn(1), dyn('b')] && [].distinct() == []",
        "[3, 1, 2].sort() == self.l && ['b', 'c', 'a'].sort() == ['a', 'b', 'c'] && [true, false].sort() == [false, true] && [].sort() == []",
        "[duration('2s'), duration('1s')].sort()[0] == duration('1s') && [b'b', b'a'].sort() == [b'a', b'b'] && [2.5, -1.0].sort() == [-1.0, 2.5]",
        "self.l.sortBy(e, -e) == [3, 2, 1] && [{'n': 'b'}, {'n': 'a'}].sortBy(e, e.n).map(e, e.n) == ['a', 'b'] && [[1], [2]].sortBy(e, -e.sum()) == [[2], [1]]",
        "lists.range(21).map(i, i % 3 == 0 ? 0.0 / 0.0 : -double(i)).sort().size() == 21 && lists.range(40).sortBy(i, i % 2 == 0 ? 0.0 / 0.0 : 1.0).size() == 40",
        "self.l.sortBy(e, self.l.sortBy(x, -x)[e - 1]) == [3, 2, 1] && self.l.filter(e, e > 1).sortBy(e, -e) == [3, 2]",
        "self.l == [1, 2, 3] && [self.m] == [{'k': 'v'}] && [1, 2] + [3] == self.l",
    ] {
        match run(source) {
            Ok(Value::Bool(true)) => {}
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn what_goes_wrong_is_told_as_cel_go_tells_it() {
    for (source, message) in [
        ("self.m.z == ''", "no such key: z"),
        ("self.m['z'] == ''", "no such key: z"),
        ("self.l[7] == 1", "index out of bounds: 7"),
        ("self.l[dyn(-1.0)] == 1", "index out of bounds: -1"),
        (
            "self.l[dyn(1.5)] == 1",
            "unsupported index value 1.5 in list",
        ),
        ("1 / (self.a - 3) == 1", "division by zero"),
        ("9223372036854775807 + self.a == 1", "integer overflow"),
        ("self.any.startsWith('x')", "no such overload"),
        ("self.any.contains('x')", "no such overload"),
        ("size(self.any)", "no such overload: size"),
        ("self.any.matches('x')", "no such overload: matches"),
        ("self.s.matches(self.any)", "no such overload"),
        ("self.any + self.s == ''", "no such overload"),
        ("dyn(true) + self.s == ''", "no such overload: _+_"),
        ("dyn('b') - self.any == 1", "no such overload"),
        ("-dyn('b') == self.any", "no such overload"),
        ("-dyn([1]) == self.any", "no such overload: -_"),
        ("dyn(null) < self.any", "no such overload: _<_"),
        ("self.any < dyn('a')", "no such overload"),
        ("double('NaN') < 1", "NaN values cannot be ordered"),
        (
            "self.any.lowerAscii() == ''",
            "no such overload: lowerAscii(int)",
        ),
        (
            "self.any.split(',') == []",
            "no such overload: split(int, string)",
        ),
        (
            "self.any.indexOf('a') == 1",
            "no such overload: indexOf(int, string)",
        ),
        (
            "self.any.charAt(0) == ''",
            "no such overload: charAt(int, int)",
        ),
        (
            "'%s'.format(self.any) == ''",
            "no such overload: format(string, int)",
        ),
        (
            "self.any.getHours() == 1",
            "no such overload: getHours(int)",
        ),
        ("ip(self.any).family() == 4", "no such overload: ip(int)"),
        ("isIP(self.any)", "no such overload: isIP(int)"),
        (
            "url(self.any).getHost() == ''",
            "no such overload: url(int)",
        ),
        (
            "quantity(self.any).isInteger()",
            "no such overload: quantity(int)",
        ),
        ("bool(self.any)", "no such overload: bool(int)"),
        ("bytes(self.any) == b''", "no such overload: bytes(int)"),
        ("int(dyn(self.l)) == 1", "no such overload: int(list)"),
        ("dyn(self.l).join() == ''", "no such overload: join(list)"),
        ("self.any.value() == 1", "no such overload: value(int)"),
        ("self.any.orValue(1) == 1", "no such overload"),
        ("[9223372036854775807, 1].sum() == 0", "integer overflow"),
        (
            "'%.99999f'.format([1.0]) == ''",
            "error during formatting: the precision is too large",
        ),
        (
            "quantity('100m').asInteger() == 0",
            "cannot convert value to integer",
        ),
        (
            "quantity('10Mm') == quantity('1')",
            "unable to parse quantity's suffix",
        ),
        (
            "self.l.slice(-1, 2) == []",
            "cannot slice(-1, 2), negative indexes not supported",
        ),
        (
            "self.l.slice(2, 1) == []",
            "cannot slice(2, 1), start index must be less than or equal to end index",
        ),
        (
            "self.l.slice(0, 4) == []",
            "cannot slice(0, 4), list is length 3",
        ),
        ("[[1]].flatten(-1) == []", "level must be non-negative"),
        (
            "[dyn(1), dyn('b')].sort() == []",
            "list elements must have the same type",
        ),
        (
            "dyn([[1, 2]]).sort() == []",
            "list elements must be comparable",
        ),
        (
            "self.l.sortBy(e, dyn([e])) == []",
            "list elements must be comparable",
        ),
        (
            "lists.range(100000000) == []",
            "operation cancelled: actual cost limit exceeded",
        ),
        // Shared values are charged for each occurrence.
        (
            "['0123456789'].map(a, lists.range(100).map(i, a).join('')).map(b, lists.range(100).map(i, b).join('')).map(c, lists.range(100).map(i, c).join('')).map(d, lists.range(100).map(i, d).join('')).size() == 1",
            "operation cancelled: actual cost limit exceeded",
        ),
        (
            "[lists.range(100)].map(a, lists.range(100).map(i, a)).map(b, lists.range(100).map(i, b)).map(c, lists.range(100).map(i, c)).map(d, '%s'.format([d])).size() == 1",
            "operation cancelled: actual cost limit exceeded",
        ),
        (
            "[lists.range(1000)].all(x, [x.map(i, x)].all(y, [y.map(i, y)].all(z, z == z)))",
            "operation cancelled: actual cost limit exceeded",
        ),
        (
            "[lists.range(1000)].all(x, [x.map(i, x)].all(y, [y.map(i, y)].all(z, z in [z])))",
            "operation cancelled: actual cost limit exceeded",
        ),
        (
            "[lists.range(1000)].all(x, [x.map(i, x)].all(y, y.map(i, y).flatten(2) == []))",
            "operation cancelled: actual cost limit exceeded",
        ),
        ("dyn(null).x == 1", "no such key: x"),
        ("dyn('a').x == 1", "no such key: x"),
        ("dyn(1)['x'] == 1", "no such key: x"),
        ("dyn([1]).x == 1", "unsupported index type 'string' in list"),
        ("has(dyn([1]).x)", "unsupported index type 'string' in list"),
        (
            "optional.none().value() == 1",
            "optional.none() dereference",
        ),
        (
            "timestamp('9999-12-31T23:59:59Z') + duration('1s') > self.t",
            "timestamp overflow",
        ),
        (
            "timestamp('0001-01-01T00:00:00Z') - duration('1ns') < self.t",
            "timestamp overflow",
        ),
        (
            "timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z') > duration('1h')",
            "duration overflow",
        ),
        (
            "duration('2562047h') + duration('2562047h') > duration('1s')",
            "duration overflow",
        ),
        ("timestamp(253402300800) > self.t", "timestamp overflow"),
        (
            "timestamp(self.s + '10000-01-01T00:00:00Z') > self.t",
            "type conversion error from 'string' to 'google.protobuf.Timestamp'",
        ),
        (
            "duration(self.s) > duration('1s')",
            "type conversion error from 'string' to 'google.protobuf.Duration'",
        ),
        (
            "self.t.getHours('america/new_york') == 1",
            "unknown time zone america/new_york",
        ),
        (
            "self.t.getHours('../UTC') == 1",
            "time: invalid location name",
        ),
        (
            "self.t.getHours('x:00') == 1",
            r#"strconv.Atoi: parsing "x": invalid syntax"#,
        ),
        (
            "self.t.getHours('Nowhere') == 1",
            "unknown time zone Nowhere",
        ),
        (
            "self.l.filter(i, i > 9).min() == 1",
            "min called on empty list",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place() {
    for (source, message) in [
        (
            "self.b > 1",
            "ERROR: <input>:1:5: undefined field 'b'\n | self.b > 1\n | ....^",
        ),
        (
            "self.a > 'x'",
            "ERROR: <input>:1:8: found no matching overload for '_>_' applied to '(int, string)'\n | self.a > 'x'\n | .......^",
        ),
        (
            "has(self.b)",
            "ERROR: <input>:1:4: undefined field 'b'\n | has(self.b)\n | ...^",
        ),
        (
            "me.a == 1",
            "ERROR: <input>:1:1: undeclared reference to 'me' (in container '')\n | me.a == 1\n | ^",
        ),
        (
            "fake(1) && self.s.startsWith(1)",
            "ERROR: <input>:1:5: undeclared reference to 'fake' (in container '')\n | fake(1) && self.s.startsWith(1)\n | ....^\nERROR: <input>:1:29: found no matching overload for 'startsWith' applied to 'string.(int)'\n | fake(1) && self.s.startsWith(1)\n | ............................^",
        ),
        (
            "self.a.all(x, x)",
            "ERROR: <input>:1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | self.a.all(x, x)\n | ....^",
        ),
        (
            "self.l.all(x, x + 1)",
            "ERROR: <input>:1:11: found no matching overload for '_&&_' applied to '(bool, int)'\n | self.l.all(x, x + 1)\n | ..........^",
        ),
        (
            "self.s.x == 1",
            "ERROR: <input>:1:7: type 'string' does not support field selection\n | self.s.x == 1\n | ......^",
        ),
        (
            "[1, 'a'] == self.l",
            "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a'] == self.l\n | ....^",
        ),
        (
            "self.a ==\nself.s",
            "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n | self.a ==\n | .......^",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
    assert!(
        run("self.a >")
            .unwrap_err()
            .starts_with("ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting")
    );
}

#[test]
fn an_expression_without_end_is_stopped() {
    let nested = "[0,1,2,3,4,5,6,7,8,9]";
    let mut source = "true".to_owned();
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        source = format!("{nested}.all({name}, {source})");
    }
    assert_eq!(
        run(&source).unwrap_err(),
        "operation cancelled: actual cost limit exceeded"
    );
}

#[test]
fn only_free_names_are_mentioned() {
    let mentions = |source: &str| {
        let program = Program::compile(
            source,
            &Environment::default().with("x", Type::list(Type::Int)),
        );
        program.expect("it compiles").mentions("x")
    };
    assert!(mentions("x.size() == 1") && mentions("[1].all(y, x[0] == y)"));
    assert!(!mentions("[1].all(x, x == 1)"));
}

#[test]
fn what_would_make_or_compare_too_much_is_stopped_before() {
    let environment = Environment::default()
        .with("text", Type::String)
        .with("list", Type::list(Type::Int));
    let text = Value::String(std::sync::Arc::new("a".repeat(1 << 20)));
    let numbers = (0..100_000).map(Value::Int).collect();
    let list = Value::List(std::sync::Arc::new(numbers));
    for source in [
        "text.replace('a', text).size() == 0",
        "sets.contains(list, list)",
        "text.matches(text)",
    ] {
        let program = Program::compile(source, &environment).expect(source);
        let variables = [("text", text.clone()), ("list", list.clone())];
        let stopped = program.evaluate(&variables, &mut Budget::default());
        let is_stopped = matches!(stopped, Err(Failure::TooLong | Failure::Exhausted));
        assert!(is_stopped, "{source}: {stopped:?}");
    }
}

#[test]
fn only_expressions_that_choose_devices_bind_names() {
    let source = "cel.bind(x, self.a * 2, x + x) == 12";
    let program = Program::compile(source, &environment().with_bind());
    let value = program
        .expect("it is one")
        .evaluate(&[("self", me())], &mut Budget::default());
    assert!(matches!(value, Ok(Value::Bool(true))));
    let issues = Program::compile("cel.bind(x, self.a, x > 1)", &environment());
    let issues = issues.expect_err("nothing is called so").to_string();
    let told: Vec<&str> = issues.lines().step_by(3).collect();
    assert_eq!(
        told,
        [
            "ERROR: <input>:1:1: undeclared reference to 'cel' (in container '')",
            "ERROR: <input>:1:9: undeclared reference to 'bind' (in container '')",
            "ERROR: <input>:1:10: undeclared reference to 'x' (in container '')",
            "ERROR: <input>:1:21: undeclared reference to 'x' (in container '')",
        ]
    );
}

#[test]
fn literals_that_are_no_times_are_refused_before_they_run() {
    for (source, message) in [
        ("duration('1d') == self.any", "invalid duration argument"),
        ("duration('1h ') == self.any", "invalid duration argument"),
        (
            "duration('3000000h') == self.any",
            "invalid duration argument",
        ),
        (
            "timestamp('2024-05-01t10:00:00Z') == self.any",
            "invalid timestamp argument",
        ),
        (
            "timestamp('2024-05-01T10:00:60Z') == self.any",
            "invalid timestamp argument",
        ),
        (
            "timestamp('0000-05-01T10:00:00Z') == self.any",
            "invalid timestamp argument",
        ),
    ] {
        let issues = Program::compile(source, &environment())
            .expect_err(source)
            .to_string();
        assert!(issues.contains(message), "{source}: {issues}");
    }
}

#[test]
fn lists_that_are_made_of_others_cost_what_cel_go_says() {
    let shape = Shape::default();
    for (source, cost) in [
        ("[1, 2, 3, 4].slice(1, 3)", 10 + 2 + 11),
        ("lists.range(5)", 5 + 11),
        ("[1, 2, 3].reverse()", 10 + 3 + 11),
        ("[[1], [2]].flatten()", 30 + 2 + 11),
        ("[[1], [2]].flatten(2)", 30 + 4 + 11),
        ("[1, 2, 3].distinct()", 10 + 18 + 11),
        ("[3, 2, 1].sort()", 10 + 18 + 11),
        ("['b', 'a'].sort()", 10 + 9 + 11),
        // The list, the loop that binds it, its keys, and the sort.
        (
            "[3, 1].sortBy(e, -e)",
            10 + 10 + 1 + (1 + 10 + 2 * (2 + 12) + 1) + 8 + 11,
        ),
    ] {
        let environment = environment();
        let program = Program::compile(source, &environment).expect(source);
        assert_eq!(program.most_cost(&environment, &shape), cost, "{source}");
    }
}

#[test]
fn no_more_than_a_hundred_mistakes_are_told_and_no_long_lines_shown() {
    let told = |source: &str| match Program::compile(source, &environment()) {
        Ok(_) => panic!("{source}"),
        Err(issues) => issues.to_string(),
    };
    let many = told(&format!("[{}]", ["x"; 150].join(",")));
    assert_eq!(many.matches("undeclared reference to 'x'").count(), 100);
    assert!(many.ends_with("\n50 more errors were truncated"), "{many}");
    let long = told(&format!("x == '{}'", "a".repeat(20_000)));
    assert!(long.len() < 200, "{}", long.len());
}
