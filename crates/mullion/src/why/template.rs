//! Makes the pod that an object of a manifest is or would create, with what its controller adds.
//!
//! Objects are taken as they are written; misspelt fields are left for the API server to refuse.

mod claims;

use k8s_openapi::api::core::v1::PodSpec;
use mullion_controllers::workloads::{POD_TEMPLATE_HASH, daemon_set, job};
use serde_json::{Map, Value, json};

use super::pod_owner::PodOwner;
pub(super) use claims::{device_claims, ephemeral_claims};

/// A pod that would be created, and what would exist because of its workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prospect {
    /// The pod, as in `pod shop/iis`, or the workload whose pod it would be.
    pub(super) named: String,
    pub(super) pod_owner: PodOwner,
    /// The number of such pods at a time; 1 for a DaemonSet, whose number depends on the nodes.
    pub(super) replicas: u64,
    /// The field because of which there are none, as in `spec.suspend is true`.
    pub(super) none_by: Option<&'static str>,
    pub(super) pod: Value,
    /// The workload whose selector says which pods are its siblings.
    pub(super) owner: Option<Value>,
    /// The claims that the workload creates for the pod.
    pub(super) claims: Vec<Value>,
    /// The DaemonSet, if the pod belongs to one, which has a pod on every eligible node.
    pub(super) daemon: Option<String>,
}

/// Returns the path from an object of a kind to its pod template; `None` for kinds that create no pods.
pub(crate) fn template_path(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "Pod" => Some(&[]),
        "Deployment"
        | "ReplicaSet"
        | "StatefulSet"
        | "DaemonSet"
        | "Job"
        | "ReplicationController" => Some(&["spec", "template"]),
        "CronJob" => Some(&["spec", "jobTemplate", "spec", "template"]),
        _ => None,
    }
}

/// Returns the plural of a kind of workloads, as in paths; `None` for pods and other kinds.
pub(super) fn workload_plural(kind: &str) -> Option<&'static str> {
    let plural = match kind {
        "Deployment" => "deployments",
        "ReplicaSet" => "replicasets",
        "StatefulSet" => "statefulsets",
        "DaemonSet" => "daemonsets",
        "Job" => "jobs",
        "CronJob" => "cronjobs",
        "ReplicationController" => "replicationcontrollers",
        _ => return None,
    };
    Some(plural)
}

/// Returns the path of a kind's API version and the kind's plural for workloads that are asked for one by one; `None` for other kinds.
pub(super) fn workload_path(kind: &str) -> Option<(&'static str, &'static str)> {
    let version = match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" => "/apis/apps/v1",
        "Job" | "CronJob" => "/apis/batch/v1",
        "ReplicationController" => "/api/v1",
        _ => return None,
    };
    Some((version, workload_plural(kind)?))
}

/// Returns the pod that an object is or would create; `None` for objects that create no pods.
pub(super) fn prospect(object: &Value, namespace: Option<&str>) -> Option<Prospect> {
    let kind = object["kind"].as_str()?;
    let template = template_path(kind)?
        .iter()
        .fold(object, |value, field| &value[*field]);
    let own = &object["metadata"];
    let home = own["namespace"].as_str().or(namespace).unwrap_or("default");
    let name = own["name"].as_str().or(own["generateName"].as_str())?;
    // A generated name ends in a dash, which reads badly in the answer.
    let name = name.trim_end_matches('-');
    let mut made = Prospect {
        named: match kind {
            "Pod" => format!("pod {home}/{name}"),
            kind => format!("a pod of {kind} {home}/{name}"),
        },
        pod_owner: PodOwner {
            kind: kind.to_owned(),
            namespace: home.to_owned(),
            name: name.to_owned(),
        },
        replicas: replicas(kind, object),
        none_by: None,
        pod: json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": home,
                "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
            },
            "spec": template["spec"],
        }),
        owner: None,
        claims: Vec::new(),
        daemon: None,
    };
    made.none_by = none_by(kind, object, made.replicas);
    if made.none_by.is_some() {
        made.replicas = 0;
    }
    let selector = &object["spec"]["selector"];
    match kind {
        "Pod" => made.describe("ownerReferences", own["ownerReferences"].clone()),
        "Deployment" => {
            // The template is new, so its ReplicaSet has no pods yet.
            let hash = json!("new");
            made.label(POD_TEMPLATE_HASH, hash.clone());
            let mut selector = selector.clone();
            if selector.is_object() {
                put(&mut selector["matchLabels"], POD_TEMPLATE_HASH, hash);
            }
            made.owned_by("ReplicaSet", &format!("{name}-new"), home, Some(&selector));
        }
        "ReplicationController" => {
            // Without a selector, a ReplicationController uses the labels of its template.
            let selector = match selector {
                Value::Null => &template["metadata"]["labels"],
                given => given,
            };
            made.owned_by(kind, name, home, Some(selector));
        }
        "ReplicaSet" => made.owned_by(kind, name, home, Some(selector)),
        "StatefulSet" => {
            made.owned_by(kind, name, home, Some(selector));
            made.number(&object["spec"], name, home);
        }
        "DaemonSet" => {
            made.owned_by(kind, name, home, None);
            made.tolerate();
            made.daemon = Some(name.to_owned());
        }
        "CronJob" => made.owned_by("Job", name, home, None),
        kind => made.owned_by(kind, name, home, None),
    }
    Some(made)
}

/// Returns how many pods a workload has at a time.
fn replicas(kind: &str, object: &Value) -> u64 {
    let of_job = |spec: &Value| {
        let parallelism = spec["parallelism"].as_i64().unwrap_or(1);
        let wanted = job::wanted_active(parallelism, spec["completions"].as_i64(), 0, 0);
        u64::try_from(wanted).unwrap_or(0)
    };
    let spec = &object["spec"];
    match kind {
        "Pod" | "DaemonSet" => 1,
        "Job" => of_job(spec),
        "CronJob" => of_job(&spec["jobTemplate"]["spec"]),
        _ => spec["replicas"].as_u64().unwrap_or(1),
    }
}

/// Returns the field because of which a workload has no pods, though it may have a template.
fn none_by(kind: &str, object: &Value, replicas: u64) -> Option<&'static str> {
    let spec = &object["spec"];
    let of_run = &spec["jobTemplate"]["spec"];
    match kind {
        "Job" if spec["suspend"] == true => Some("spec.suspend is true"),
        "Job" if replicas == 0 && spec["completions"] == 0 => Some("spec.completions is 0"),
        "Job" if replicas == 0 => Some("spec.parallelism is 0"),
        "CronJob" if spec["suspend"] == true => Some("spec.suspend is true"),
        "CronJob" if of_run["suspend"] == true => Some("spec.jobTemplate.spec.suspend is true"),
        "CronJob" if replicas == 0 && of_run["completions"] == 0 => {
            Some("spec.jobTemplate.spec.completions is 0")
        }
        "CronJob" if replicas == 0 => Some("spec.jobTemplate.spec.parallelism is 0"),
        _ if replicas == 0 => Some("spec.replicas is 0"),
        _ => None,
    }
}

impl Prospect {
    fn owned_by(&mut self, kind: &str, name: &str, home: &str, selector: Option<&Value>) {
        let version = match kind {
            "ReplicationController" => "v1",
            "Job" => "batch/v1",
            _ => "apps/v1",
        };
        let owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true});
        self.describe("ownerReferences", json!([owner]));
        let selector = selector.filter(|selector| selector.is_object());
        self.owner = selector.map(|selector| {
            json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": home}, "spec": {"selector": selector},
            })
        });
    }

    /// Turns the pod into the first one of a StatefulSet: sets its name, labels and claims.
    fn number(&mut self, spec: &Value, set: &str, home: &str) {
        let number = spec["ordinals"]["start"].as_i64().unwrap_or(0);
        // The pod of the lowest ordinal is made first, and the others wait for it unless the policy is
        // Parallel.
        let name = format!("{set}-{number}");
        self.label("statefulset.kubernetes.io/pod-name", json!(name));
        self.label("apps.kubernetes.io/pod-index", json!(number.to_string()));
        self.describe("name", json!(name));
        let templates = spec["volumeClaimTemplates"].as_array();
        let templates = templates.map(Vec::as_slice).unwrap_or_default();
        if templates.is_empty() {
            return;
        }
        let volumes = self.pod["spec"]["volumes"].as_array();
        let mut volumes = volumes.cloned().unwrap_or_default();
        for template in templates {
            let Some(volume) = template["metadata"]["name"].as_str() else {
                continue;
            };
            let claim = format!("{volume}-{name}");
            // A claim template replaces a volume of the same name, as in the StatefulSet controller.
            volumes.retain(|own| own["name"] != volume);
            volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
            self.claims
                .push(claims::claim(&claim, home, template, None));
        }
        put(&mut self.pod["spec"], "volumes", Value::Array(volumes));
    }

    /// Adds the tolerations that the DaemonSet controller adds to its pods.
    fn tolerate(&mut self) {
        let spec = PodSpec {
            host_network: self.pod["spec"]["hostNetwork"].as_bool(),
            ..PodSpec::default()
        };
        let tolerations = self.pod["spec"]["tolerations"].as_array();
        let mut tolerations = tolerations.cloned().unwrap_or_default();
        let added = daemon_set::tolerations(&spec).into_iter();
        tolerations.extend(added.map(|toleration| json!(toleration)));
        put(
            &mut self.pod["spec"],
            "tolerations",
            Value::Array(tolerations),
        );
    }

    fn describe(&mut self, field: &str, value: Value) {
        put(&mut self.pod["metadata"], field, value);
    }

    fn label(&mut self, key: &str, value: Value) {
        put(&mut self.pod["metadata"]["labels"], key, value);
    }
}

/// Sets a field of an object, which is created if it is null. Any other value is left as it is; the reader of the object will refuse it.
pub(crate) fn put(object: &mut Value, field: &str, value: Value) {
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, spec: Value) -> Prospect {
        let object =
            json!({"kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        prospect(&object, Some("other")).expect("it makes pods")
    }

    fn template() -> Value {
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"os": {"name": "windows"}}})
    }

    #[test]
    fn a_workload_makes_the_pod_of_its_template() {
        let cron = of(
            "CronJob",
            json!({"jobTemplate": {"spec": {"template": template()}}}),
        );
        assert_eq!(cron.named, "a pod of CronJob shop/web");
        assert_eq!(cron.pod["metadata"]["namespace"], "shop");
        assert_eq!(cron.pod["metadata"]["labels"]["app"], "web");
        assert_eq!(cron.pod["spec"]["os"]["name"], "windows");
        assert_eq!(cron.replicas, 1);
        let job = of(
            "Job",
            json!({"parallelism": 5, "completions": 3, "template": template()}),
        );
        assert_eq!((job.replicas, job.none_by), (3, None));
        let service = json!({"kind": "Service", "metadata": {"name": "s"}});
        assert_eq!(prospect(&service, None), None);
    }

    #[test]
    fn a_workload_may_say_that_it_has_no_pods() {
        let none = |kind: &str, mut spec: Value| {
            spec["template"] = template();
            let made = of(kind, spec);
            (made.replicas, made.none_by)
        };
        let of_run = |spec: Value| json!({"jobTemplate": {"spec": spec}});
        for (kind, spec, why) in [
            (
                "Job",
                json!({"suspend": true, "parallelism": 5}),
                "spec.suspend is true",
            ),
            ("Job", json!({"parallelism": 0}), "spec.parallelism is 0"),
            ("Job", json!({"completions": 0}), "spec.completions is 0"),
            ("CronJob", json!({"suspend": true}), "spec.suspend is true"),
            (
                "CronJob",
                of_run(json!({"suspend": true})),
                "spec.jobTemplate.spec.suspend is true",
            ),
            (
                "CronJob",
                of_run(json!({"parallelism": 0})),
                "spec.jobTemplate.spec.parallelism is 0",
            ),
            ("StatefulSet", json!({"replicas": 0}), "spec.replicas is 0"),
        ] {
            assert_eq!(none(kind, spec), (0, Some(why)), "{kind}");
        }
        // The pods that a paused Deployment has stay, and are scaled.
        let paused = json!({"paused": true, "replicas": 2});
        assert_eq!(none("Deployment", paused), (2, None));
    }

    #[test]
    fn a_pod_of_a_deployment_is_one_of_a_new_replica_set() {
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template()});
        let Prospect { pod, owner, .. } = of("Deployment", spec);
        let owner = owner.expect("a ReplicaSet");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
        assert_eq!(
            pod["metadata"]["ownerReferences"][0]["name"],
            owner["metadata"]["name"]
        );
        let labels = json!({"app": "web", "pod-template-hash": "new"});
        assert_eq!(pod["metadata"]["labels"], labels);
        assert_eq!(owner["spec"]["selector"]["matchLabels"], labels);
    }

    #[test]
    fn a_pod_of_a_stateful_set_has_a_number_and_claims() {
        let spec = json!({
            "selector": {"matchLabels": {"app": "web"}}, "template": template(), "ordinals": {"start": 5},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}],
        });
        let Prospect { pod, claims, .. } = of("StatefulSet", spec);
        assert_eq!(pod["metadata"]["name"], "web-5");
        let volume =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-5"}}]);
        assert_eq!(pod["spec"]["volumes"], volume);
        assert_eq!(
            claims[0]["metadata"],
            json!({"name": "data-web-5", "namespace": "shop"})
        );
        assert_eq!(claims[0]["spec"]["storageClassName"], "fast");
    }

    #[test]
    fn a_pod_of_a_daemon_set_tolerates_what_its_controller_says() {
        let tolerates = |made: &Prospect, key: &str| {
            let all = made.pod["spec"]["tolerations"].as_array().expect("a list");
            all.iter().any(|own| own["key"] == key)
        };
        let mut spec = json!({"template": template()});
        let made = of("DaemonSet", spec.clone());
        assert_eq!(made.daemon.as_deref(), Some("web"));
        assert!(tolerates(&made, "node.kubernetes.io/unschedulable"));
        assert!(!tolerates(&made, "node.kubernetes.io/network-unavailable"));
        spec["template"]["spec"]["hostNetwork"] = json!(true);
        let made = of("DaemonSet", spec);
        assert!(tolerates(&made, "node.kubernetes.io/network-unavailable"));
    }

    #[test]
    fn a_malformed_workload_is_left_for_others_to_refuse() {
        let wrong = [json!("a"), json!(1), json!(true), json!(["a"]), json!([{}])];
        let kinds = [
            "Pod",
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
            "DaemonSet",
            "Job",
            "ReplicationController",
            "CronJob",
        ];
        let places = [
            "/metadata",
            "/metadata/labels",
            "/spec",
            "/spec/selector",
            "/spec/selector/matchLabels",
            "/spec/ordinals",
            "/spec/volumeClaimTemplates",
            "/spec/template",
            "/spec/template/metadata",
            "/spec/template/metadata/labels",
            "/spec/template/spec",
            "/spec/template/spec/volumes",
            "/spec/template/spec/tolerations",
            "/spec/jobTemplate",
            "/spec/jobTemplate/spec/template/spec",
        ];
        for kind in kinds {
            let whole = json!({
                "kind": kind, "metadata": {"name": "web", "labels": {}},
                "spec": {
                    "selector": {"matchLabels": {}}, "ordinals": {}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                    "template": {"metadata": {"labels": {}}, "spec": {"volumes": [], "tolerations": []}},
                    "jobTemplate": {"spec": {"template": template()}},
                },
            });
            for place in places {
                for wrong in &wrong {
                    let mut object = whole.clone();
                    *object.pointer_mut(place).expect("a place") = wrong.clone();
                    if let Some(mut made) = prospect(&object, None) {
                        ephemeral_claims(&made.pod);
                        device_claims(&mut made.pod, &[]);
                    }
                }
            }
        }
    }
}
