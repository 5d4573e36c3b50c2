use serde_json::{Value, json};

use super::{Cluster, create, update};
use crate::admission::gmsa::Gmsa;

const CONTENTS: &str = r#"{"CmsPlugins":["ActiveDirectory"],"DomainJoinConfig":{"DnsName":"contoso.com","Sid":"S-1-5 \u003c\u0026\u003e"}}"#;
const NO_HOST_NAMES: Gmsa = Gmsa {
    random_host_name: false,
};

/// Returns a cluster whose service account `default/web` may use `webapp1`, with another credential spec and one
/// without contents.
fn cluster() -> Cluster {
    let spec = |name: &str| json!({"DomainJoinConfig": {"Sid": "S-1-5 <&>", "DnsName": name}, "CmsPlugins": ["ActiveDirectory"]});
    Cluster::default()
        .with(
            "gmsacredentialspecs",
            "webapp1",
            json!({"credspec": spec("contoso.com")}),
        )
        .with(
            "gmsacredentialspecs",
            "other",
            json!({"credspec": spec("example.com")}),
        )
        .with("gmsacredentialspecs", "empty", json!({}))
        .with(
            "namespaces",
            "default",
            json!({"metadata": {"name": "default"}}),
        )
        .granting("default/web use webapp1")
        .granting("default/web use empty")
}

fn options(name: Option<&str>, contents: Option<&str>) -> Value {
    let mut options = json!({});
    if let Some(name) = name {
        options["gmsaCredentialSpecName"] = name.into();
    }
    if let Some(contents) = contents {
        options["gmsaCredentialSpec"] = contents.into();
    }
    json!({ "windowsOptions": options })
}

/// Returns a pod with these options for the pod, a container and an init container.
fn pod(own: &Value, container: &Value, init: &Value) -> Value {
    json!({"metadata": {"name": "web-1"}, "spec": {
        "serviceAccountName": "web",
        "securityContext": own,
        "containers": [{"name": "log"}, {"name": "iis", "securityContext": container}],
        "initContainers": [{"name": "setup", "securityContext": init}],
    }})
}

/// Returns a pod with these options on one of three levels.
fn at(level: &str, options: &Value) -> Value {
    let none = json!({});
    let of = |wanted: &str| if level == wanted { options } else { &none };
    pod(of("pod"), of("container"), of("initContainer"))
}

const LEVELS: [(&str, &str); 3] = [
    ("pod", "web-1"),
    ("container", "iis"),
    ("initContainer", "setup"),
];

fn refused(code: u16, text: impl Into<String>) -> Result<Value, (u16, String)> {
    Err((code, text.into()))
}

#[test]
fn contents_are_written_into_the_pod_its_containers_and_its_init_containers() {
    let named = options(Some("webapp1"), None);
    let expanded = options(Some("webapp1"), Some(CONTENTS));
    let created = create(&NO_HOST_NAMES, &cluster(), pod(&named, &named, &named));
    assert_eq!(created, Ok(pod(&expanded, &expanded, &expanded)));
    let plain = pod(&json!({}), &options(None, None), &Value::Null);
    assert_eq!(create(&NO_HOST_NAMES, &cluster(), plain.clone()), Ok(plain));
}

#[test]
fn a_credential_spec_that_is_not_there_or_has_no_contents_is_refused() {
    for (level, _) in LEVELS {
        let created = |name| {
            create(
                &NO_HOST_NAMES,
                &cluster(),
                at(level, &options(Some(name), None)),
            )
        };
        assert_eq!(
            created("nope"),
            refused(404, "cred spec nope does not exist")
        );
        assert_eq!(
            created("empty"),
            refused(417, "cred spec empty does not have a credspec key")
        );
    }
}

#[test]
fn the_pod_s_service_account_must_be_allowed_to_use_it() {
    let why = "service account \"web\" is not authorized to `use` GMSA cred spec \"other\"";
    for (level, _) in LEVELS {
        let pod = at(level, &options(Some("other"), None));
        assert_eq!(
            create(&NO_HOST_NAMES, &cluster(), pod.clone()),
            refused(403, why)
        );
        let known = cluster().because("RBAC: role not found");
        let why = format!("{why}, reason: \"RBAC: role not found\"");
        assert_eq!(create(&NO_HOST_NAMES, &known, pod), refused(403, why));
    }
}

#[test]
fn contents_that_a_user_gives_must_be_those_of_the_named_credential_spec() {
    let reordered = r#" {"DomainJoinConfig": {"Sid": "S-1-5 <&>", "DnsName": "contoso.com"}, "CmsPlugins": ["ActiveDirectory"]}"#;
    for (level, name) in LEVELS {
        let created = |options: &Value| create(&NO_HOST_NAMES, &cluster(), at(level, options));
        let same = options(Some("webapp1"), Some(reordered));
        assert_eq!(created(&same), Ok(at(level, &same)));
        let start = format!(
            "the GMSA cred spec contents for {level} \"{name}\" does not match the contents of GMSA resource \"webapp1\""
        );
        let with = |contents| created(&options(Some("webapp1"), Some(contents)));
        assert_eq!(with("{}"), refused(422, &start));
        assert_eq!(with("null"), refused(422, &start));
        let parse = "unable to parse";
        assert_eq!(
            with("[1]"),
            refused(
                422,
                format!(
                    "{start}: {parse} \"[1]\" as a JSON object: json: cannot unmarshal array into Go value of type map[string]interface {{}}"
                )
            )
        );
        assert_eq!(
            with("{"),
            refused(
                422,
                format!("{start}: {parse} \"{{\" as a JSON object: unexpected end of JSON input")
            )
        );
        let nameless = format!(
            "{level} \"{name}\" has a GMSA cred spec set, but does not define the name of the corresponding resource"
        );
        assert_eq!(
            created(&options(None, Some(CONTENTS))),
            refused(422, nameless)
        );
    }
}

#[test]
fn names_and_contents_stay_as_they_are_in_an_update() {
    let known = cluster();
    let changed = |old: &Value, new: &Value| update(&NO_HOST_NAMES, &known, "alice", old, new);
    let one = options(Some("webapp1"), Some(CONTENTS));
    for (level, name) in LEVELS {
        let refused = |what: &str| {
            let text = format!(
                "cannot update an existing pod's GMSA settings (GMSA {what} modified on {level} \"{name}\")"
            );
            Some((403, text))
        };
        let before = at(level, &one);
        assert_eq!(changed(&before, &before), None);
        for (options, what) in [
            (options(Some("other"), Some(CONTENTS)), "name"),
            (options(Some("webapp1"), Some("{}")), "contents"),
            (options(None, None), "name and contents"),
        ] {
            assert_eq!(
                changed(&before, &at(level, &options)),
                refused(what),
                "{level}"
            );
        }
        assert_eq!(
            changed(&at(level, &json!({})), &before),
            refused("name and contents")
        );
        // Options that are removed completely are not compared, as in windows-gmsa.
        assert_eq!(changed(&before, &at(level, &json!({}))), None);
    }
}

#[test]
fn a_pod_with_a_credential_spec_gets_a_random_host_name_if_that_is_wanted() {
    let rule = Gmsa {
        random_host_name: true,
    };
    let pod = at("container", &options(Some("webapp1"), None));
    let created = create(&rule, &cluster(), pod.clone()).expect("it is admitted");
    let name = created["spec"]["hostname"].as_str().expect("a host name");
    assert!(
        name.len() == 15
            && name
                .chars()
                .all(|c| c == '-' || c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
        "{name}"
    );
    let mut own = pod;
    own["spec"]["hostname"] = "web".into();
    let created = create(&rule, &cluster(), own).expect("it is admitted");
    assert_eq!(created["spec"]["hostname"], "web");
    let plain = at("pod", &options(None, None));
    assert_eq!(create(&rule, &cluster(), plain.clone()), Ok(plain));
}

#[test]
fn a_namespace_with_the_label_is_left_alone() {
    let labels = |value: &str| json!({"metadata": {"labels": {"windows.k8s.io/disabled": value}}});
    let pod = at("pod", &options(Some("nope"), Some("{}")));
    let off = cluster().with("namespaces", "default", labels("true"));
    assert_eq!(create(&NO_HOST_NAMES, &off, pod.clone()), Ok(pod.clone()));
    let on = cluster().with("namespaces", "default", labels("false"));
    assert!(create(&NO_HOST_NAMES, &on, pod).is_err());
}
