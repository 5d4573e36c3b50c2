//! Tests of maps: which keys they have, and which values find them.

use super::*;

#[test]
fn keys_are_what_go_tells_apart_and_numbers_find_what_they_equal() {
    for source in [
        "{1: 'a'}[dyn(1.0)] == 'a' && {1: 'a'}[dyn(1u)] == 'a' && {1u: 'a'}[dyn(1)] == 'a' && {1u: 'a'}[dyn(1.0)] == 'a'",
        "{1.5: 'a'}[1.5] == 'a' && 1.5 in {1.5: 'a'} && !(1.0 in {1.5: 'a'}) && !(dyn(1) in {1.0: 'a'}) && {1.0: 'a'}[1.0] == 'a'",
        "{dyn(1): 'a', dyn(1u): 'b', dyn(1.0): 'c'}.size() == 3 && {dyn(1): 'a', dyn(1u): 'b', dyn(1.0): 'c'}[1u] == 'b'",
        "{'a': 1, 'a': 2} == {'a': 2} && {'a': 1, ?'a': optional.none()} == {} && {1.5: 1, ?1.5: optional.none()} == {}",
        "null in {null: 1} && {null: 1}.size() == 1 && {null: 1}.exists(k, k == null) && type({null: 1}) == map && {null: 1} == {null: 1}",
        "{1.5: 1, 2.5: 2}.map(k, k) == [1.5, 2.5] && {2.5: 'x'}.transformList(k, v, v) == ['x'] && {2.5: 'x'}.transformMap(k, v, k) == {2.5: 2.5}",
        "{-0.0: 1}[0.0] == 1 && {0.0: 1} == {-0.0: 1} && {double('nan'): 1, double('nan'): 2}.size() == 2",
        "{duration('1h'): 1, duration('60m'): 2}.size() == 1 && self.t in {self.t: 1} && {int: 1, string: 2}.exists(k, k == int)",
        "!([1] in {[1]: 2}) && {[1]: 2}.all(k, k == [1]) && dyn({1.5: 1}) != {1: 1} && optional.ofNonZeroValue({1.5: 1}).hasValue()",
        "{1.5: 'a'}[?2.5].orValue('b') == 'b' && {1.5: 'a'}[?1.5].orValue('b') == 'a' && !has({dyn('a'): 1, dyn(null): 2}.b) && {dyn('a'): 1, dyn(null): 2}.a == 1",
        "[1, 2].transformMapEntry(i, v, {double(v): i}) == {1.0: 0, 2.0: 1}",
        "{true: 1}[true] == 1 && {9223372036854775807: 1}.exists(k, k == 9223372036854775807) && !(9223372036854775808.0 in {dyn(9223372036854775807): 1})",
        "self.m[?'z'].orValue('n') == 'n' && self.?m.k.orValue('n') == 'v' && !has(self.?m.z) && dyn(self.l)[?dyn(7)].orValue(0) == 0",
    ] {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
    for (source, message) in [
        ("{1.5: 'a'}[2.5] == ''", "no such key: 2.5"),
        ("{1.0: 'a'}[dyn(1)] == ''", "no such key: 1"),
        ("{1: 'a'}[dyn(1e300)] == ''", "no such key: 1e+300"),
        ("{true: 'a'}[false] == ''", "no such key: false"),
        (
            "[1][dyn('a') ] == 1",
            "unsupported index type 'string' in list",
        ),
        (
            "dyn(self.l)[?'a'].hasValue()",
            "unsupported index type 'string' in list",
        ),
        (
            "dyn(self.l).?a.hasValue()",
            "unsupported index type 'string' in list",
        ),
        (
            "dyn(self.l)[?dyn(1.5)].hasValue()",
            "unsupported index value 1.5 in list",
        ),
        (
            "dyn(self.m)[self.l] == 1",
            "invalid qualifier type: *types.baseList",
        ),
        (
            "self.l.map(x, bytes('a' + 'b')).all(b, {b: 1}.size() == 1)",
            "internal error: runtime error: hash of unhashable type types.Bytes",
        ),
        (
            "[1.5, 1.5].transformMapEntry(i, v, {v: i}).size() == 1",
            "insert failed: key 1.5 already exists",
        ),
        (
            "[dyn(0), dyn(0u)].transformMapEntry(i, v, {v: i}).size() == 1",
            "insert failed: key 0 already exists",
        ),
        (
            "[dyn(2), dyn(2.0)].transformMapEntry(i, v, {v: i}).size() == 1",
            "insert failed: key 2 already exists",
        ),
        ("[1.5][3] == 1.0", "index out of bounds: 3"),
        (
            "'%s'.format([{1.5: 'a'}]) == ''",
            "error during formatting: no formatting function for map key of type double",
        ),
        (
            "{?'a': dyn(1)}.size() == 1",
            "cannot initialize optional entry 'a' from non-optional value 1",
        ),
        (
            "[?dyn('b')].size() == 1",
            "cannot initialize optional list element from non-optional value b",
        ),
        (
            "dyn(self.a).optMap(x, x).hasValue()",
            "no such overload: hasValue(int)",
        ),
        // Of several errors in conditions the last one is reported, of several in results the first.
        (
            "['a', 'b'].filter(x, self.m[x] == '') == []",
            "no such key: b",
        ),
        (
            "['a', 'b'].exists_one(x, self.m[x] == '')",
            "no such key: b",
        ),
        ("['a', 'b'].map(x, self.m[x]) == []", "no such key: a"),
        (
            "['a', 'b'].map(x, self.m[x] == '', x) == []",
            "no such key: b",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
    for (source, place) in [
        (
            "{1: 1, 1u: 2}.size() == 1",
            "1:8: expected type 'int' but found 'uint'",
        ),
        (
            "{1.5: 'a'}['b'] == ''",
            "1:11: found no matching overload for '_[_]' applied to '(map(double, string), string)'",
        ),
        (
            "1 in {1.5: 'a'}",
            "1:3: found no matching overload for '@in' applied to '(int, map(double, string))'",
        ),
    ] {
        let issues = run(source).unwrap_err();
        assert!(
            issues.starts_with(&format!("ERROR: <input>:{place}")),
            "{issues}"
        );
    }
}
