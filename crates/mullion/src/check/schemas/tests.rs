//! Tests reading objects by their schemas.

use serde_json::json;

use super::*;
use crate::check::path::Path;

fn object(value: Value) -> Object {
    Object {
        value,
        text: 0,
        document: 0,
        root: Path::default(),
        is_patch: false,
    }
}

fn read(value: Value) -> Reading {
    Schemas::of(&[], Timestamp::UNIX_EPOCH).read(&object(value))
}

fn fields(reading: Reading) -> Vec<(String, String, Option<String>)> {
    match reading {
        Reading::Read { unknown, .. } => unknown
            .into_iter()
            .map(|own| (own.name, own.path.to_string(), own.near))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_field_that_a_kind_does_not_have_is_found_where_it_stands() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotation": {}},
        "spec": {
            "nodeSelectr": {}, "containers": [{"name": "a"}, {"name": "b", "imag": "x"}],
            "volumes": [{"name": "v", "$patch": "delete"}],
        },
    });
    let near = |name: &str| Some(name.to_owned());
    let mut found = fields(read(pod));
    found.sort();
    assert_eq!(
        found,
        [
            (
                "metadata.annotation",
                "metadata.annotation",
                near("annotations")
            ),
            (
                "spec.containers[1].imag",
                "spec.containers[1].imag",
                near("image")
            ),
            ("spec.nodeSelectr", "spec.nodeSelectr", near("nodeSelector")),
        ]
        .map(|(name, path, near)| (name.to_owned(), path.to_owned(), near))
    );
}

#[test]
fn custom_resources_are_known_by_their_definitions() {
    let pool = |spec: Value| json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a"}, "spec": spec});
    let found = fields(read(pool(json!({"wieght": 1}))));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&*found[0].0, found[0].2.as_deref()),
        ("spec.wieght", Some("weight"))
    );
    let widget =
        || object(json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"sise": 1}}));
    let definition = object(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": {"kind": "Widget"}, "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        }}}]},
    }));
    let unknown =
        Schemas::of(&[], Timestamp::UNIX_EPOCH).unknown([&widget(), &widget()].into_iter());
    assert_eq!((unknown.len(), unknown[0].objects), (1, 2));
    assert!(!unknown[0].is_other_version);
    let schemas = Schemas::of(&[definition], Timestamp::UNIX_EPOCH);
    assert_eq!(schemas.unknown([&widget()].into_iter()), []);
    assert_eq!(fields(schemas.read(&widget()))[0].0, "spec.sise");
}

#[test]
fn a_kind_that_kubernetes_does_not_have_names_what_may_be_meant() {
    let near = |api_version: &str, kind: &str| match read(
        json!({"apiVersion": api_version, "kind": kind}),
    ) {
        Reading::NoSuchKind { near } => near.unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        near("apps/v1", "Deploymnet"),
        "the nearest kind is Deployment"
    );
    assert_eq!(near("v1", "Deployment"), "Deployment is in apps/v1");
    assert_eq!(near("v1", "PodSpec"), "");
    assert_eq!(near("apps/v7", "Widget"), "");
    let beta = read(json!({"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool"}));
    assert_eq!(
        beta,
        Reading::Unknown {
            is_other_version: true
        }
    );
    let file =
        read(json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}));
    assert_eq!(file, Reading::faultless());
}

/// Returns the misfits of an object as place, what the field takes, and the words of who refuses the value.
fn misfits(value: Value) -> Vec<(String, &'static str, String)> {
    let Reading::Read { misfits, .. } = read(value) else {
        panic!("nothing was read");
    };
    let shown = misfits.into_iter().map(|own| {
        let words = match own.refusal {
            Refusal::Decoding(words) | Refusal::Validation(words) => words,
            Refusal::Eksctl => "eksctl".to_owned(),
        };
        (
            own.path.to_string(),
            own.expected.unwrap_or_default(),
            words,
        )
    });
    shown.collect()
}

#[test]
fn a_value_of_another_type_is_refused_in_the_servers_words() {
    let found =
        misfits(json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "3"}}));
    let [(path, expected, why)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(
        (path.as_str(), *expected),
        ("spec.replicas", "a whole number")
    );
    assert!(
        why.starts_with("json: cannot unmarshal string into Go struct field"),
        "{why}"
    );
}

#[test]
fn values_of_other_types_hide_neither_each_other_nor_unknown_fields() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"a": 1}},
        "spec": {
            "replica": 3, "replicas": "3",
            "template": {"spec": {"containers": [
                {"name": 1, "imag": "x"}, {"name": 2, "resources": {"limits": {"memory": "1Gib"}}}, "text",
            ]}},
        },
    });
    let found = misfits(deployment.clone());
    let mut places: Vec<_> = found.iter().map(|(path, ..)| path.as_str()).collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "metadata.labels.a",
            "spec.replicas",
            "spec.template.spec.containers[0].name",
            "spec.template.spec.containers[1].name",
            "spec.template.spec.containers[1].resources.limits.memory",
            "spec.template.spec.containers[2]",
        ]
    );
    let mut unknown = fields(read(deployment));
    unknown.sort();
    let unknown: Vec<_> = unknown.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        unknown,
        ["spec.replica", "spec.template.spec.containers[0].imag"]
    );
}

#[test]
fn a_value_of_another_type_in_a_custom_resource_is_found_too() {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": 7},
        "spec": {
            "weight": "10", "limits": {"cpu": 8, "memory": "1Gi"},
            "template": {"spec": {"requirements": [{"key": "a", "operator": "In", "values": "b"}]}},
        },
    });
    let mut found = misfits(pool);
    found.sort();
    let found: Vec<_> = found
        .iter()
        .map(|(path, expected, why)| (path.as_str(), *expected, why.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                "metadata.name",
                "a text",
                "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"
            ),
            (
                "spec.template.spec.requirements[0].values",
                "a list",
                r#"spec.template.spec.requirements[0].values: Invalid value: "string": spec.template.spec.requirements[0].values in body must be of type array: "string""#
            ),
            (
                "spec.weight",
                "a whole number",
                r#"spec.weight: Invalid value: "string": spec.weight in body must be of type integer: "string""#
            ),
        ]
    );
}

#[test]
fn an_object_without_a_kind_or_an_api_version_says_which_and_what_may_be_meant() {
    let lacks = |value: Value| match read(value) {
        Reading::Nameless { lacks, near } => (lacks, near),
        other => panic!("{other:?}"),
    };
    let deployment = json!({"kind": "Deployment", "metadata": {"name": "web"}});
    assert_eq!(lacks(deployment), ("apiVersion", Some("apps/v1")));
    assert_eq!(lacks(json!({"kind": "Widget"})), ("apiVersion", None));
    assert_eq!(lacks(json!({"apiVersion": "v1"})), ("kind", None));
}

#[test]
fn a_file_of_eksctl_is_read_by_the_fields_of_eksctl() {
    let config = |value: Value| json!({"apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "nodeGroups": [value]});
    let found = fields(read(config(json!({"name": "a", "desiredCapcity": 3}))));
    let near = Some("desiredCapacity".to_owned());
    let name = "nodeGroups[0].desiredCapcity".to_owned();
    assert_eq!(found, [(name.clone(), name, near)]);
    let found = misfits(config(json!({"name": "a", "minSize": "3"})));
    assert_eq!(
        found,
        [(
            "nodeGroups[0].minSize".to_owned(),
            "a whole number",
            "eksctl".to_owned()
        )]
    );
    let near = |api_version: &str, kind: &str| match read(
        json!({"apiVersion": api_version, "kind": kind}),
    ) {
        Reading::NoSuchKind { near } => near,
        other => panic!("{other:?}"),
    };
    let meant = Some("eksctl reads ClusterConfig in eksctl.io/v1alpha5".to_owned());
    assert_eq!(near("eksctl.io/v1alpha5", "ClusterConfg"), meant);
    assert_eq!(near("eksctl.io/v1alpha4", "ClusterConfig"), meant);
}

/// Returns what the API server refuses of an object besides values of other types, as field and message.
fn refused(value: Value) -> Vec<String> {
    let Reading::Read { refused, .. } = read(value) else {
        panic!("nothing was read");
    };
    let shown = refused.into_iter();
    shown
        .map(|own| format!("{}: {}", own.field, own.why))
        .collect()
}

#[test]
fn what_follows_from_a_value_that_is_left_out_is_not_said() {
    let pod = |lun: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {
                "containers": [{"name": "a", "image": "a:1", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}],
                "volumes": [{"name": "disk", "fc": {"targetWWNs": ["50060e801049cfd1"], "lun": lun}}],
            },
        })
    };
    assert_eq!(misfits(pod(json!("2"))).len(), 1);
    assert_eq!(refused(pod(json!("2"))), [] as [&str; 0]);
    assert_eq!(refused(pod(json!(2))), [] as [&str; 0]);
    let deployment = |label: Value, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web", "version": label}},
                "template": {
                    "metadata": {"labels": {"app": "web", "version": "1"}},
                    "spec": {"containers": [{"name": "web", "image": image}]},
                },
            },
        })
    };
    assert_eq!(misfits(deployment(json!(1), "web:1")).len(), 1);
    assert_eq!(refused(deployment(json!(1), "web:1")), [] as [&str; 0]);
    // What does not follow is said.
    let without_image = refused(deployment(json!(1), ""));
    assert_eq!(without_image.len(), 1, "{without_image:?}");
    let other = refused(deployment(json!("2"), "web:1"));
    assert_eq!(other.len(), 1, "{other:?}");
    assert!(other[0].ends_with("`selector` does not match template `labels`"));
}

#[test]
fn one_remark_speaks_of_all_kinds_of_karpenters_v1beta1() {
    let unknown = |api_version: &str, kind: &str| UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        is_other_version: true,
        objects: 1,
    };
    let all = [
        unknown("karpenter.sh/v1beta1", "NodePool"),
        unknown("karpenter.sh/v7", "NodePool"),
        unknown("karpenter.k8s.aws/v1beta1", "EC2NodeClass"),
    ];
    assert_eq!(
        remarks(&all),
        [
            "the fields of NodePool are not checked: its version karpenter.sh/v7 is not known",
            "the fields of NodePool and EC2NodeClass of Karpenter's v1beta1 are not checked, but for what MUL077 says of v1",
        ]
    );
}
