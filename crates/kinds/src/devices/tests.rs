//! Tests of device selectors and of their errors.

use super::{Attribute::*, *};

const DRIVER: &str = "dra.example.com";

type Attributes<'a> = &'a [(&'a str, Attribute<'a>)];
type Capacity<'a> = &'a [(&'a str, &'a str)];

fn device(attributes: Attributes<'_>, capacity: Capacity<'_>) -> Device {
    let (attributes, capacity) = (attributes.iter().copied(), capacity.iter().copied());
    Device::new(DRIVER, false, attributes, capacity).expect("a device")
}

/// Returns whether an expression selects a device, and checks its estimated cost.
fn asked(expression: &str, cost: u64, device: &Device) -> Result<bool, MatchError> {
    let selector = Selector::compile(expression).expect(expression);
    assert_eq!(selector.most_cost(), cost, "{expression}");
    selector.matches(device)
}

#[test]
fn what_a_device_has_is_found_under_its_domain() {
    let nothing: (Attributes<'_>, Capacity<'_>) = (&[], &[]);
    let name = |value| [("name", value)];
    let services = [("services", Text("some_example_value"))];
    let symmetric = [("services", Text("asymetric"))];
    let three = [("a", Bool(true)), ("b", Bool(true)), ("c", Bool(true))];
    let all = [
        ("bool", Bool(true)),
        ("int", Int(1)),
        ("string", Text("fish")),
        ("version", Version("1.0.0")),
    ];
    let every = r#"
device.capacity["dra.example.com"].quantity.isGreaterThan(quantity("1Ki")) &&
device.attributes["dra.example.com"].bool &&
device.attributes["dra.example.com"].int > 0 &&
device.attributes["dra.example.com"].string == "fish" &&
device.attributes["dra.example.com"].version.isGreaterThan(semver("0.0.1")) &&
device.capacity["dra.example.com"]["quantity"].isGreaterThan(quantity("1Ki")) &&
device.attributes["dra.example.com"]["bool"] &&
device.attributes["dra.example.com"]["int"] > 0 &&
device.attributes["dra.example.com"]["string"] == "fish" &&
device.attributes["dra.example.com"]["version"].isGreaterThan(semver("0.0.1"))
"#;
    let cases: [(&str, u64, (Attributes<'_>, Capacity<'_>), bool); 27] = [
        ("true", 0, nothing, true),
        ("false", 0, nothing, false),
        (
            r#""no-such-domain" in device.attributes"#,
            3,
            nothing,
            false,
        ),
        (
            r#""dra.example.com" in device.attributes"#,
            3,
            (&[("dra.example.com/something", Bool(true))], &[]),
            true,
        ),
        (r#"device.driver == """#, 2, nothing, false),
        (r#"device.driver == "dra.example.com""#, 4, nothing, true),
        (
            r#"device.attributes["dra.example.com"].name"#,
            4,
            (&name(Bool(true)), &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"]["name"]"#,
            4,
            (&name(Bool(true)), &[]),
            true,
        ),
        (
            r#"cel.bind(dra, device.attributes["dra.example.com"], dra.name)"#,
            15,
            (&name(Bool(true)), &[]),
            true,
        ),
        (
            r#"device.attributes["other.example.com"].name"#,
            4,
            (&[("other.example.com/name", Bool(true))], &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].name > 0"#,
            5,
            (&name(Int(1)), &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].name == "fish""#,
            5,
            (&name(Text("fish")), &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("0.0.1"))"#,
            6,
            (&name(Version("1.0.0")), &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)"#,
            7,
            (&name(Version("1.0.0")), &[]),
            true,
        ),
        (
            r#"device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
            6,
            (&[], &[("name", "1Mi")]),
            true,
        ),
        (
            r#""name" in device.capacity["dra.example.com"] && device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
            10,
            (&[], &[("name", "1Mi")]),
            true,
        ),
        (
            r#"!("name" in device.capacity["dra.example.com"]) || device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
            11,
            nothing,
            true,
        ),
        (every, 52, (&all, &[("quantity", "1Mi")]), true),
        (
            r#"device.attributes["dra.example.com"].a && device.attributes["dra.example.com"].b && device.attributes["dra.example.com"].c"#,
            12,
            (&three, &[]),
            true,
        ),
        (
            r#"device.attributes.exists_one(x, x == "dra.example.com")"#,
            164,
            (&services, &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].exists_one(x, x == "services")"#,
            133,
            (&services, &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].services.split("example").size() >= 2"#,
            19,
            (&services, &[]),
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].services.matches("[^a]?sym")"#,
            18,
            (&symmetric, &[]),
            true,
        ),
        (
            r#"device.capacity.exists_one(x, x == "dra.example.com")"#,
            164,
            (&[], &[("memory", "1Mi")]),
            true,
        ),
        (
            r#"device.capacity["dra.example.com"].exists_one(x, x == "memory")"#,
            133,
            (&[], &[("memory", "1Mi")]),
            true,
        ),
        ("device.allowMultipleAllocations == true", 3, nothing, false),
        ("device.allowMultipleAllocations == false", 3, nothing, true),
    ];
    for (expression, cost, (attributes, capacity), chosen) in cases {
        let device = device(attributes, capacity);
        assert_eq!(asked(expression, cost, &device), Ok(chosen), "{expression}");
    }
}

#[test]
fn a_device_may_be_for_many_and_its_driver_may_have_no_name() {
    let shared = Device::new(DRIVER, true, [], []).expect("a device");
    let selector = Selector::compile("device.allowMultipleAllocations").expect("it is one");
    assert_eq!(selector.matches(&shared), Ok(true));
    let nameless = Device::new("", false, [("a", Int(1))], []).expect("a device");
    let selector = Selector::compile(r#"device.driver == "" && device.attributes[""].a == 1"#);
    assert_eq!(selector.expect("it is one").matches(&nameless), Ok(true));
}

#[test]
fn a_domain_that_is_not_there_is_empty_but_is_not_counted() {
    let device = device(&[("a", Int(1)), ("other.example.com/b", Int(2))], &[]);
    for holds in [
        r#"device.attributes.size() == 2"#,
        r#"device.attributes["none"].size() == 0"#,
        r#"device.attributes["none"] == {} && {} == device.attributes["none"]"#,
        r#"device.attributes == {"dra.example.com": {"a": 1}, "other.example.com": {"b": 2}}"#,
        r#"!("none" in device.attributes) && !device.attributes.exists(x, x == "none")"#,
        r#"has(device.attributes.none) && !has(device.attributes.none.a)"#,
        r#"!device.attributes["none"].?a.hasValue() && device.attributes[?"none"].hasValue()"#,
        r#"device.attributes["none"].?a.orValue(3) == 3 && device.attributes[?"dra.example.com"].?a.orValue(3) == 1"#,
        r#"device.attributes.map(x, device.attributes[x].size()) == [1, 1]"#,
        r#"device.attributes.all(domain, held, held.size() == 1) && type(device.attributes) == map"#,
        r#"cel.bind(all, device.attributes, all["none"].size() + all["dra.example.com"].a) == 1"#,
        r#"device.capacity.size() == 0 && device.capacity["none"].size() == 0"#,
    ] {
        let selector = Selector::compile(holds).expect(holds);
        assert_eq!(selector.matches(&device), Ok(true), "{holds}");
    }
}

#[test]
fn versions_are_ordered_and_equal_whatever_they_were_built_from() {
    let device = device(&[("version", Version("1.2.3-rc.1+built"))], &[]);
    for holds in [
        r#"v == semver("1.2.3-rc.1+other") && v != semver("1.2.3-rc.2")"#,
        r#"v.compareTo(semver("1.2.3-rc.1")) == 0 && !v.isLessThan(semver("1.2.3-rc.1+z")) && !v.isGreaterThan(semver("1.2.3-rc.1"))"#,
        r#"v.isLessThan(semver("1.2.3")) && v.isGreaterThan(semver("v1.2", true)) && v.isLessThan(semver("1.2.3-rc.10"))"#,
        r#"v.major() == 1 && v.minor() == 2 && v.patch() == 3 && type(v) == kubernetes.Semver"#,
        r#"isSemver("1.2.3") && !isSemver("v1.2.3") && !isSemver("1.2.3", false) == false && !isSemver("1.2-rc", true)"#,
    ] {
        let whole =
            format!(r#"cel.bind(v, device.attributes["dra.example.com"].version, {holds})"#);
        let selector = Selector::compile(&whole).expect(&whole);
        assert_eq!(selector.matches(&device), Ok(true), "{holds}");
    }
}

#[test]
fn of_two_names_for_one_thing_the_one_with_the_domain_counts() {
    let (short, long) = ("size", "dra.example.com/size");
    for names in [[short, long], [long, short]] {
        let sizes = names.map(|name| (name, Int(i64::from(name == long))));
        let amounts = names.map(|name| (name, if name == long { "1" } else { "0" }));
        let selector = Selector::compile(
            r#"device.attributes["dra.example.com"].size == 1 && device.capacity["dra.example.com"].size == quantity("1")"#,
        );
        let chosen = selector
            .expect("it is one")
            .matches(&device(&sizes, &amounts));
        assert_eq!(chosen, Ok(true), "{names:?}");
    }
    assert_eq!(domain_and_id(short, DRIVER), (DRIVER, "size"));
    assert_eq!(domain_and_id("a.com/b/c", DRIVER), ("a.com", "b/c"));
}

#[test]
fn what_goes_wrong_is_told() {
    let attributes = [
        ("int", Int(1)),
        ("bool", Bool(true)),
        ("text", Text("fish")),
        ("version", Version("1.0.0")),
    ];
    let device = device(&attributes, &[("memory", "1Gi")]);
    let missing = "no such key: noSuchAttr".to_owned();
    let a = |rest: &str| format!(r#"device.attributes["dra.example.com"].{rest}"#);
    let of = |kind: &str, why: &str| {
        format!("CEL result of type {kind} could not be converted to bool: {why}")
    };
    for (expression, why) in [
        (
            r#"device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))"#
                .to_owned(),
            missing.clone(),
        ),
        (
            r#"device.attributes["no-such-domain"]["noSuchAttr"].isGreaterThan(quantity("0"))"#
                .to_owned(),
            missing.clone(),
        ),
        (a("noSuchAttr"), missing),
        (
            a("int.exists(x, x > 0)"),
            "got 'types.Int', expected iterable type".to_owned(),
        ),
        (
            a("bool.exists(x, x == true)"),
            "got 'types.Bool', expected iterable type".to_owned(),
        ),
        (
            a("text.all(x, x == 'fish')"),
            "got 'types.String', expected iterable type".to_owned(),
        ),
        (
            a(r#"version.exists(x, x.isGreaterThan(semver("0.0.1")))"#),
            "got 'cel.Semver', expected iterable type".to_owned(),
        ),
        (
            a("int.all(i, x, x > 0)"),
            "unsupported comprehension range type: types.Int".to_owned(),
        ),
        (
            a(r#"text.isGreaterThan(quantity("1"))"#),
            "no such overload: isGreaterThan(string, kubernetes.Quantity)".to_owned(),
        ),
        (
            a(r#"int.isGreaterThan(quantity("1"))"#),
            "no such overload: isGreaterThan(int, kubernetes.Quantity)".to_owned(),
        ),
        (
            a(r#"version.compareTo(quantity("1")) == 0"#),
            "no such overload: compareTo(kubernetes.Semver, kubernetes.Quantity)".to_owned(),
        ),
        (a("text > 1"), "no such overload".to_owned()),
        (
            a("int"),
            of("int", "unsupported type conversion from 'int' to bool"),
        ),
        (
            a("text"),
            of(
                "string",
                "unsupported native conversion from string to 'bool'",
            ),
        ),
        (
            a("version"),
            of(
                "kubernetes.Semver",
                "type conversion error from 'Semver' to 'bool'",
            ),
        ),
        (
            r#"dyn(device.capacity["dra.example.com"].memory)"#.to_owned(),
            of(
                "kubernetes.Quantity",
                "type conversion error from 'Quantity' to 'bool'",
            ),
        ),
        (
            "dyn([true])".to_owned(),
            of("list", "type conversion error from list to 'bool'"),
        ),
        (
            "dyn(device.attributes)".to_owned(),
            of("map", "type conversion error from map to 'bool'"),
        ),
        (
            "dyn(1.5)".to_owned(),
            of("double", "type conversion error from Double to 'bool'"),
        ),
        (
            "dyn(null)".to_owned(),
            of(
                "null_type",
                "type conversion error from 'null_type' to 'bool'",
            ),
        ),
    ] {
        let selector = Selector::compile(&expression).expect(&expression);
        let refused = selector.matches(&device).map_err(|error| error.to_string());
        assert_eq!(refused, Err(why), "{expression}");
    }
}

#[test]
fn what_goes_through_an_attribute_may_take_a_step_for_each_item_it_could_have() {
    let expression = r#"device.attributes["a.com"].names.exists(x, x > 0)"#;
    let selector = Selector::compile(expression).expect("it is one");
    // A condition and a step for each of 64 items.
    assert_eq!(selector.most_cost(), 5 + 6 * 64);
}

#[test]
fn an_expression_that_takes_too_long_is_stopped() {
    let items = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let innermost = "int('1'.find('[0-9]*')) < 100".to_owned();
    let nested = (0..7).fold(innermost, |inner, at| {
        format!("{items}.all(x{at}, {inner})")
    });
    let told = asked(&nested, 85_555_551, &device(&[], &[]));
    let why = "operation cancelled: actual cost limit exceeded";
    assert_eq!(told.map_err(|error| error.to_string()), Err(why.to_owned()));
}

#[test]
fn what_is_no_expression_about_a_device_is_refused() {
    for (expression, why) in [
        ("?!", "compilation failed: ERROR: <input>:1:1: Syntax error"),
        ("1", "must evaluate to bool or the unknown type, not int"),
        (
            "device.name == 'a'",
            "compilation failed: ERROR: <input>:1:7: undefined field 'name'",
        ),
        (
            "device.attributes.a.b.includes('c')",
            "compilation failed: ERROR: <input>:1:31: undeclared reference to 'includes'",
        ),
    ] {
        let told = Selector::compile(expression).expect_err(expression);
        let told = told.to_string();
        assert!(told.starts_with(why), "{expression}: {told}");
    }
}

#[test]
fn a_value_that_is_none_is_told_with_its_name() {
    let version = Device::new(DRIVER, false, [("v", Version("1.2"))], []);
    let why = "attribute v: parse semantic version: No Major.Minor.Patch elements found";
    assert_eq!(version.expect_err("it is none").to_string(), why);
    let amount = Device::new(DRIVER, false, [], [("a.com/m", "1Mm")]);
    assert_eq!(
        amount.expect_err("it is none").to_string(),
        "capacity a.com/m: unable to parse quantity's suffix"
    );
}

#[test]
fn many_threads_may_ask() {
    fn shared<T: Send + Sync>() {}
    shared::<Selector>();
    shared::<Device>();
}
