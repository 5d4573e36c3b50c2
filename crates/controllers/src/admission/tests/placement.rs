use std::{collections::BTreeMap, sync::Arc};

use mullion_engine::images::{ImageRef, ImageTable, Runs};
use serde_json::{Value, json};

use super::{Cluster, create};
use crate::admission::{
    ClusterReader, Rule, Verdict, Write,
    placement::{Facts, PlaceByImage, Taint, taints, usual_taint},
};

const IIS: &str = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";

/// Registries that have answered for a few images.
#[derive(Default)]
struct Answers {
    runs: BTreeMap<String, Runs>,
    /// Hosts of registries that have not answered yet.
    awaited: Vec<String>,
}

impl Facts for Answers {
    fn in_registries(
        &self,
        images: &[Option<ImageRef>],
        _: &dyn Fn() -> Vec<Arc<Value>>,
    ) -> Vec<Option<Runs>> {
        let images = images.iter();
        images
            .map(|image| self.runs.get(&image.as_ref()?.full_name()).cloned())
            .collect()
    }

    fn may_be_learnt(&self, images: &[ImageRef], _: &dyn Fn() -> Vec<Arc<Value>>) -> bool {
        let mut hosts = images.iter().map(ImageRef::registry);
        hosts.any(|host| self.awaited.iter().any(|awaited| awaited == host))
    }

    fn windows_taints(&self, _: &dyn ClusterReader) -> Vec<Taint> {
        vec![usual_taint()]
    }
}

/// Returns the rule with these facts from registries.
fn rule(answers: &[(&str, &str)]) -> PlaceByImage {
    let runs = answers.iter().map(|(image, runs)| {
        let image = ImageRef::parse(image).expect("the name is valid");
        (image.full_name(), runs.parse().expect("platforms"))
    });
    PlaceByImage {
        table: Arc::new(ImageTable::default()),
        facts: Arc::new(Answers {
            runs: runs.collect(),
            awaited: vec!["slow.example.com".to_owned()],
        }),
        gates_unknown: false,
    }
}

fn pod(images: &[&str]) -> Value {
    let containers = images.iter().enumerate().map(|(index, image)| {
        let name = char::from(b'a' + u8::try_from(index).expect("few containers"));
        json!({"name": name.to_string(), "image": image})
    });
    json!({"metadata": {"name": "web"}, "spec": {"containers": containers.collect::<Vec<_>>()}})
}

/// Returns a pod with these fields in its spec.
fn pod_with(images: &[&str], spec: Value) -> Value {
    let mut pod = pod(images);
    for (key, value) in spec.as_object().expect("an object") {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn placed(rule: &PlaceByImage, pod: Value) -> Value {
    create(rule, &Cluster::default(), pod).expect("it is admitted")
}

/// Returns the operating system in the node selector of a pod with these images, or null.
fn system(rule: &PlaceByImage, images: &[&str]) -> Value {
    placed(rule, pod(images))["spec"]["nodeSelector"]["kubernetes.io/os"].clone()
}

fn verdict(rule: &PlaceByImage, pod: &Value, old: Option<&Value>) -> Verdict {
    let write = Write {
        user: "alice",
        namespace: "default",
        pod,
        old,
    };
    rule.mutate(&write, &Cluster::default())
}

fn required(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

fn terms(pod: &Value) -> &Value {
    &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
}

#[test]
fn a_windows_image_takes_its_pod_to_windows_hosts_of_the_right_builds() {
    let mut after = placed(&rule(&[]), pod(&[IIS]));
    let annotation = after["metadata"]["annotations"]["mullion.dev/placed-by-image"].take();
    let annotation: Value =
        serde_json::from_str(annotation.as_str().expect("a text")).expect("JSON");
    assert_eq!(
        annotation,
        json!({
            "os": "windows",
            "containers": {"a": {
                "image": IIS,
                "runsOn": "windows:10.0.20348",
                "source": "table",
                "because": "the tag windowsservercore-ltsc2022",
            }},
            "added": ["nodeSelector", "os", "requiredAffinity", "preferredAffinity", "tolerations"],
        })
    );
    let is_in = |values: Value| json!({"matchExpressions": [{"key": "node.kubernetes.io/windows-build", "operator": "In", "values": values}]});
    assert_eq!(
        after["spec"],
        json!({
            "containers": [{"name": "a", "image": IIS}],
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "os": {"name": "windows"},
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [is_in(json!(["10.0.20348", "10.0.26100"]))]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": is_in(json!(["10.0.20348"]))}],
            }},
            "tolerations": [{"key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule"}],
        })
    );
}

#[test]
fn a_linux_image_takes_its_pod_to_linux_nodes_of_its_architectures() {
    let rule = rule(&[("r.example.com/shop:1", "linux/arm64")]);
    let after = placed(&rule, pod(&["r.example.com/shop:1"]));
    assert_eq!(
        after["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "linux"})
    );
    assert_eq!(after["spec"]["os"], json!({"name": "linux"}));
    assert_eq!(
        terms(&after),
        &json!([{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}])
    );
    assert!(after["spec"]["tolerations"].is_null());
    assert_eq!(system(&rule, &["nginx:1.27"]), "linux");
}

#[test]
fn of_both_systems_linux_is_taken_unless_the_namespace_says_windows() {
    let aspnet = "mcr.microsoft.com/dotnet/aspnet:8.0";
    assert_eq!(system(&rule(&[]), &[aspnet]), "linux");
    let labels = json!({"metadata": {"labels": {"mullion.dev/default-os": "windows"}}});
    let cluster = Cluster::default().with("namespaces", "default", labels);
    let after = create(&rule(&[]), &cluster, pod(&[aspnet])).expect("it is admitted");
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
    assert!(terms(&after).is_null(), "every build runs it");
}

#[test]
fn what_nobody_knows_adds_nothing() {
    let unknown = pod(&["r.example.com/shop:1"]);
    assert_eq!(placed(&rule(&[]), unknown.clone()), unknown);
    // The known image of another container still decides.
    let images = ["r.example.com/shop:1", "envoyproxy/envoy:v1.30"];
    assert_eq!(system(&rule(&[]), &images), "linux");
    let images = [
        "r.example.com/shop:1",
        "mcr.microsoft.com/dotnet/aspnet:8.0",
    ];
    assert_eq!(system(&rule(&[]), &images), Value::Null);
}

#[test]
fn containers_that_run_together_nowhere_are_refused_when_registries_said_so() {
    let facts = [
        ("r.example.com/iis:1", "windows/amd64:10.0.20348"),
        ("r.example.com/log:1", "linux/amd64,linux/arm64"),
    ];
    let images = ["r.example.com/iis:1", "r.example.com/log:1"];
    let refused = create(&rule(&facts), &Cluster::default(), pod(&images));
    assert_eq!(
        refused,
        Err((
            403,
            "no node can run all containers of this pod: container \"a\" (r.example.com/iis:1) needs Windows (amd64) of build 10.0.20348, \
             container \"b\" (r.example.com/log:1) needs Linux (amd64, arm64) (the label mullion.dev/place-by-image: \"false\" turns this check off)"
                .to_owned()
        ))
    );
    let facts = [
        ("r.example.com/a:1", "windows/amd64:10.0.17763"),
        ("r.example.com/b:1", "windows/amd64:10.0.20348"),
    ];
    let images = ["r.example.com/a:1", "r.example.com/b:1"];
    assert!(create(&rule(&facts), &Cluster::default(), pod(&images)).is_err());
}

#[test]
fn a_guess_refuses_nothing_and_warns() {
    let pod = pod(&[IIS, "nginx:1.27"]);
    let verdict = verdict(&rule(&[]), &pod, None);
    assert_eq!((verdict.refusal, verdict.changes), (None, Vec::new()));
    assert_eq!(
        verdict.warnings,
        [format!(
            "judging by the names of its images, no node can run all containers of this pod: container \"a\" ({IIS}, by the tag \
             windowsservercore-ltsc2022) needs Windows of build 10.0.20348, container \"b\" (nginx:1.27, by the repository \
             docker.io/library/nginx) needs Linux (the label mullion.dev/place-by-image: \"false\" turns this check off)"
        )]
    );
    // A certain fact still places the pod, although guesses contradict it.
    let rule = rule(&[("nginx:1.27", "linux/amd64")]);
    assert_eq!(system(&rule, &[IIS, "nginx:1.27"]), "linux");
}

#[test]
fn the_pod_s_own_choice_stands_and_is_held_against_facts() {
    let windows = json!({"nodeSelector": {"kubernetes.io/os": "windows"}});
    let linux = pod_with(&["nginx:1.27"], windows.clone());
    let guessed = verdict(&rule(&[]), &linux, None);
    assert_eq!((guessed.changes.len(), guessed.warnings.len()), (0, 1));
    let refused = create(
        &rule(&[("nginx:1.27", "linux/amd64")]),
        &Cluster::default(),
        linux,
    );
    assert_eq!(
        refused,
        Err((
            403,
            "this pod asks for Windows nodes, which cannot run all of its containers: container \"a\" (nginx:1.27) needs Linux (amd64) \
             (the label mullion.dev/place-by-image: \"false\" turns this check off)"
                .to_owned()
        ))
    );
    let both = [(
        "r.example.com/shop:1",
        "linux/amd64,windows/amd64:10.0.20348",
    )];
    let chosen = placed(&rule(&both), pod_with(&["r.example.com/shop:1"], windows));
    assert_eq!(
        chosen["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "windows"})
    );
    assert_eq!(chosen["spec"]["tolerations"][0]["key"], "os");
    let older = json!({"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.17763"}});
    let refused = create(
        &rule(&both),
        &Cluster::default(),
        pod_with(&["r.example.com/shop:1"], older),
    );
    let (_, text) = refused.expect_err("no host of that build runs it");
    assert!(
        text.starts_with("this pod asks for Windows nodes of build 10.0.17763, "),
        "{text}"
    );
}

#[test]
fn every_term_of_a_required_affinity_is_narrowed_and_what_the_pod_chooses_is_left_out() {
    let term = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let zone = |zone| term("topology.kubernetes.io/zone", zone);
    let spec = required(json!([
        {"matchExpressions": [zone("a")]},
        {},
        {"matchExpressions": [zone("b")]},
    ]));
    let after = placed(&rule(&[]), pod_with(&[IIS], spec));
    let build = json!({"key": "node.kubernetes.io/windows-build", "operator": "In", "values": ["10.0.20348", "10.0.26100"]});
    assert_eq!(
        terms(&after),
        &json!([
            {"matchExpressions": [zone("a"), build]},
            {},
            {"matchExpressions": [zone("b"), build]},
        ])
    );
    let build = term("node.kubernetes.io/windows-build", "10.0.26100");
    let spec = required(json!([{"matchExpressions": [build]}]));
    let after = placed(&rule(&[]), pod_with(&[IIS], spec.clone()));
    assert_eq!(after["spec"]["affinity"], spec["affinity"]);
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
}

#[test]
fn the_system_is_not_named_where_a_field_forbids_it() {
    let user = json!({"securityContext": {"runAsUser": 1000}});
    let after = placed(&rule(&[]), pod_with(&[IIS], user));
    assert!(after["spec"]["os"].is_null());
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
    let mut options = pod(&["nginx"]);
    options["spec"]["containers"][0]["securityContext"]["windowsOptions"] = json!({});
    assert!(placed(&rule(&[]), options)["spec"]["os"].is_null());
}

#[test]
fn pods_and_namespaces_opt_out_by_label_and_kube_system_is_out() {
    let untouched = |cluster: &Cluster, pod: &Value, namespace: &str| {
        let write = Write {
            user: "alice",
            namespace,
            pod,
            old: None,
        };
        rule(&[]).mutate(&write, cluster) == Verdict::default()
    };
    let label =
        |value: &str| json!({"metadata": {"labels": {"mullion.dev/place-by-image": value}}});
    let (nobody, plain) = (Cluster::default(), pod(&[IIS]));
    let mut out = plain.clone();
    out["metadata"]["labels"] = label("false")["metadata"]["labels"].clone();
    let mut inside = plain.clone();
    inside["metadata"]["labels"] = label("true")["metadata"]["labels"].clone();
    assert!(!untouched(&nobody, &plain, "default"));
    assert!(untouched(&nobody, &out, "default"));
    assert!(untouched(&nobody, &plain, "kube-system"));
    assert!(!untouched(&nobody, &inside, "kube-system"));
    let closed = Cluster::default().with("namespaces", "default", label("false"));
    assert!(untouched(&closed, &plain, "default"));
    assert!(!untouched(&closed, &inside, "default"));
}

#[test]
fn a_host_process_container_runs_on_every_build() {
    let mut daemon = pod(&[IIS]);
    daemon["spec"]["securityContext"]["windowsOptions"]["hostProcess"] = true.into();
    let after = placed(&rule(&[]), daemon);
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
    assert!(after["spec"]["affinity"].is_null());
}

#[test]
fn the_pod_s_annotation_comes_before_the_registry() {
    let mut annotated = pod(&["nginx:1.27"]);
    annotated["metadata"]["annotations"]["mullion.dev/runs-on"] = "windows/amd64".into();
    let after = placed(&rule(&[("nginx:1.27", "linux")]), annotated);
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "windows");
}

#[test]
fn an_annotation_that_names_no_platforms_is_warned_about() {
    let mut annotated = pod(&["nginx:1.27"]);
    annotated["metadata"]["annotations"]["mullion.dev/runs-on"] = "windoze".into();
    let rule = rule(&[("nginx:1.27", "linux")]);
    let warnings = verdict(&rule, &annotated, None).warnings;
    assert_eq!(
        warnings,
        [
            "the annotation mullion.dev/runs-on decides nothing: `windoze` is not a platform: expected linux, windows, linux/arm64 or windows/amd64:10.0.20348, with commas between several"
        ]
    );
    let after = placed(&rule, annotated);
    assert_eq!(after["spec"]["nodeSelector"]["kubernetes.io/os"], "linux");
}

#[test]
fn a_new_image_is_held_against_where_the_pod_is() {
    let rule = rule(&[("r.example.com/new:1", "linux/amd64")]);
    let old = placed(&rule, pod(&[IIS]));
    let mut new = old.clone();
    new["spec"]["containers"][0]["image"] = "r.example.com/new:1".into();
    let refusal = verdict(&rule, &new, Some(&old)).refusal;
    assert_eq!(refusal.map(|refusal| refusal.code), Some(403));
    assert_eq!(verdict(&rule, &old, Some(&old)), Verdict::default());
}

#[test]
fn init_and_ephemeral_containers_count_too() {
    let mut init = pod(&["r.example.com/shop:1"]);
    init["spec"]["initContainers"] = json!([{"name": "setup", "image": IIS}]);
    assert_eq!(
        placed(&rule(&[]), init)["spec"]["nodeSelector"]["kubernetes.io/os"],
        "windows"
    );
}

#[test]
fn taints_that_every_windows_node_and_pool_has_and_no_linux_one_are_tolerated() {
    let taints = |keys: &[&str]| {
        let taints = keys.iter();
        json!(
            taints
                .map(|key| json!({"key": key, "value": "v", "effect": "NoSchedule"}))
                .collect::<Vec<_>>()
        )
    };
    let node = |os: &str, keys: &[&str]| json!({"metadata": {"labels": {"kubernetes.io/os": os}}, "spec": {"taints": taints(keys)}});
    let pool = |keys: &[&str]| json!({"spec": {"template": {"spec": {"taints": taints(keys), "nodeClassRef": {"name": "win"}}}}});
    let class = json!({"spec": {"amiSelectorTerms": [{"alias": "windows2022@latest"}]}});
    let keys = |cluster: &Cluster| -> Vec<String> {
        let common = taints::common(cluster);
        common.into_iter().map(|taint| taint.key).collect()
    };
    assert_eq!(taints::common(&Cluster::default()), [usual_taint()]);
    let cluster = Cluster::default()
        .with(
            "nodes",
            "w1",
            node(
                "windows",
                &["os", "gpu", "all", "node.kubernetes.io/not-ready"],
            ),
        )
        .with(
            "nodes",
            "w2",
            node("windows", &["os", "all", "node.kubernetes.io/not-ready"]),
        )
        .with("nodes", "l1", node("linux", &["all"]));
    assert_eq!(keys(&cluster), ["os"]);
    for (operator, value) in [("In", "windows"), ("NotIn", "linux")] {
        let mut other = pool(&["gpu"]);
        other["spec"]["template"]["spec"]["requirements"] =
            json!([{"key": "kubernetes.io/os", "operator": operator, "values": [value]}]);
        let cluster = Cluster::default()
            .with("nodes", "w1", node("windows", &["os", "gpu"]))
            .with("nodepools", "other", other);
        assert_eq!(keys(&cluster), ["gpu"], "{operator} {value}");
    }
    let cluster = cluster
        .with("ec2nodeclasses", "win", class)
        .with("nodepools", "win", pool(&[]));
    assert!(keys(&cluster).is_empty());
}

#[test]
fn a_pod_of_unknown_images_waits_behind_a_gate_where_that_is_wanted_and_its_registry_may_still_answer()
 {
    let gating = PlaceByImage {
        gates_unknown: true,
        ..rule(&[("r.example.com/both:1", "linux,windows")])
    };
    let gates =
        |rule: &PlaceByImage, pod: Value| placed(rule, pod)["spec"]["schedulingGates"].take();
    let slow = "slow.example.com/app:1";
    let gate = json!([{"name": "mullion.dev/image"}]);
    assert_eq!(gates(&gating, pod(&[slow])), gate);
    // The known image runs on both systems, so the other image decides.
    assert_eq!(gates(&gating, pod(&["r.example.com/both:1", slow])), gate);
    let others = json!([{"name": "example.com/quota"}]);
    let with_others = gates(
        &gating,
        pod_with(&[slow], json!({"schedulingGates": others})),
    );
    assert_eq!(
        with_others,
        json!([{"name": "example.com/quota"}, {"name": "mullion.dev/image"}])
    );
    let ungated = [
        gates(&rule(&[]), pod(&[slow])),
        gates(&gating, pod(&["other.example.com/app:1"])),
        gates(&gating, pod(&["nginx:1.27", slow])),
        gates(
            &gating,
            pod_with(
                &[slow],
                json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
            ),
        ),
        gates(&gating, pod_with(&[slow], json!({"nodeName": "node-1"}))),
    ];
    assert_eq!(ungated, [const { Value::Null }; 5]);
}
