use super::*;

#[test]
fn leading_zeros_are_decimal_and_worth_a_warning() {
    assert_eq!(canonical("010.0.0.1").as_deref(), Some("10.0.0.1"));
    assert_eq!(parse_ip("1.2.3"), None);
    assert_eq!(canonical("::ffff:1.2.3.4").as_deref(), Some("1.2.3.4"));
    let path = Path::new("ip");
    assert_eq!(
        ip_warning(&path, "010.0.0.1").as_deref(),
        Some(
            r#"ip: non-standard IP address "010.0.0.1" will be considered invalid in a future Kubernetes release: use "10.0.0.1""#
        )
    );
    assert_eq!(ip_warning(&path, "10.0.0.1"), None);
}

fn found(check: impl Fn(&mut Errors, &Path<'_>)) -> Vec<String> {
    let causes = crate::field::causes(|errors| check(errors, &Path::new("f")));
    let detail = |cause: &String| cause.rsplit(": ").next().unwrap_or_default().to_owned();
    causes.iter().map(detail).collect()
}

#[test]
fn new_addresses_are_strict_and_old_ones_stay() {
    for (value, why) in [
        ("1.2.3.4", None),
        ("2001:DB8:0::1", None),
        ("1.2.3.04", Some("must not have leading 0s")),
        ("::ffff:1.2.3.4", Some(MAPPED)),
        ("::ffff:1.2.3.04", Some("must not have leading 0s")),
        ("1.2.3", Some(NO_ADDRESS)),
        ("fe80::1%eth0", Some(NO_ADDRESS)),
    ] {
        let causes = found(|errors, path| {
            ip(errors, path, value, OldValues::NONE);
        });
        assert_eq!(causes, Vec::from_iter(why), "{value}");
        let kept = OldValues::from_iter(["9.9.9.9", value]);
        let causes = found(|errors, path| {
            ip(errors, path, value, &kept);
        });
        assert!(causes.is_empty(), "{value}");
    }
}

#[test]
fn new_networks_have_no_bits_beyond_their_prefix() {
    const ZEROS: &str = "must not have leading 0s in IP or prefix length";
    const MAPPED_NETWORK: &str = "must not have an IPv4-mapped IPv6 address";
    for (value, why) in [
        ("10.0.0.0/8", None),
        ("2001:DB8::/64", None),
        ("0.0.0.0/0", None),
        (
            "10.0.0.1/8",
            Some("must not have bits set beyond the prefix length"),
        ),
        (
            "2001:db8::1/64",
            Some("must not have bits set beyond the prefix length"),
        ),
        ("010.0.0.1/8", Some(ZEROS)),
        ("10.0.0.0/08", Some(ZEROS)),
        ("::ffff:10.0.0.0/120", Some(MAPPED_NETWORK)),
        ("::ffff:10.0.0.1/24", Some(MAPPED_NETWORK)),
        (
            "10.0.0.0",
            Some("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        ),
    ] {
        let causes = found(|errors, path| cidr(errors, path, value, OldValues::NONE));
        assert_eq!(causes, Vec::from_iter(why), "{value}");
        let kept = OldValues::from_iter([value]);
        assert!(found(|errors, path| cidr(errors, path, value, &kept)).is_empty());
    }
    assert_eq!(
        found(|errors, path| strict_cidr(errors, path, "FD00::/64")),
        [r#"must be in canonical form ("fd00::/64")"#]
    );
}

#[test]
fn a_cidr_with_host_bits_is_ambiguous() {
    let warnings = cidr_warnings(&Path::new("c"), "10.0.0.1/8");
    assert_eq!(
        warnings,
        [
            r#"c: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
        ]
    );
    assert_eq!(parse_cidr("10.0.0.0/33"), None);
}

#[test]
fn a_cidr_of_ipv4_may_be_written_as_one_of_ipv6() {
    const AMBIGUOUS: &str = "is ambiguous in this context";
    const ODD: &str = "will be considered invalid in a future Kubernetes release: use";
    let rows: [(&str, &str, Vec<String>); 6] = [
        (
            "::ffff:192.12.2.0/120",
            "192.12.2.0/24",
            vec![format!(
                r#"c: non-standard CIDR value "::ffff:192.12.2.0/120" {ODD} "192.12.2.0/24""#
            )],
        ),
        (
            "::ffff:192.12.2.8/120",
            "192.12.2.0/24",
            vec![
                format!(
                    r#"c: CIDR value "::ffff:192.12.2.8/120" {AMBIGUOUS} (should be "192.12.2.0/24" or "192.12.2.8/128"?)"#
                ),
                format!(
                    r#"c: non-standard CIDR value "::ffff:192.12.2.8/120" {ODD} "192.12.2.0/24""#
                ),
            ],
        ),
        // The prefix ends before the IPv4 mapping does.
        (
            "::ffff:1.1.1.0/24",
            "::/24",
            vec![
                format!(
                    r#"c: CIDR value "::ffff:1.1.1.0/24" {AMBIGUOUS} (should be "::/24" or "1.1.1.0/128"?)"#
                ),
                format!(r#"c: non-standard CIDR value "::ffff:1.1.1.0/24" {ODD} "::/24""#),
            ],
        ),
        (
            "192.12.2.0/024",
            "192.12.2.0/24",
            vec![format!(
                r#"c: non-standard CIDR value "192.12.2.0/024" {ODD} "192.12.2.0/24""#
            )],
        ),
        ("::/0", "::/0", vec![]),
        ("0.0.0.0/0", "0.0.0.0/0", vec![]),
    ];
    for (text, canonical, warnings) in rows {
        let range = parse_cidr(text).expect("a range");
        assert_eq!(range.to_string(), canonical);
        assert_eq!(cidr_warnings(&Path::new("c"), text), warnings);
    }
    let refused =
        |text: &str| crate::field::causes(|errors| strict_cidr(errors, &Path::new("c"), text));
    for text in ["::ffff:1.1.1.0/24", "::ffff:1.1.1.0/120"] {
        let why = "must not have an IPv4-mapped IPv6 address";
        assert_eq!(
            refused(text),
            [format!("c: Invalid value: {text:?}: {why}")]
        );
    }
    let range = parse_cidr("::ffff:10.0.0.0/104").expect("a range");
    assert!(range.contains(IpAddr::from([10, 9, 8, 7])));
    assert!(!range.contains(IpAddr::from([11, 0, 0, 1])));
}
