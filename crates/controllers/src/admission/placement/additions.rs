//! Writes the result of placement into a pod: node selector, `spec.os.name`, node affinity, tolerations, and an
//! annotation that reports them.
//!
//! Every addition is skipped if the pod already has it, so a second call adds nothing.

use mullion_api::labels::{ARCH, OS, PLACED_BY_IMAGE, WINDOWS_BUILD};
use mullion_engine::{
    images::{Runs, Shape, System},
    windows::{Build, Builds},
};
use serde_json::{Map, Value, json};

use super::{
    Container, Source, Taint,
    hosts::{Allowed, is_blank, terms},
    items,
};
use crate::admission::Verdict;

/// The weight of the preference for the images' own build. If a pod has no other preference, any weight gives the
/// scorer's full range.
const OWN_BUILD_WEIGHT: i64 = 1;

/// Fields of a pod spec that `spec.os.name: windows` forbids.
const NOT_ON_WINDOWS: [&str; 4] = ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
/// Fields of the pod's security context that `spec.os.name: windows` forbids.
const NOT_IN_WINDOWS_PODS: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
/// Fields of a container's security context that `spec.os.name: windows` forbids.
const NOT_IN_WINDOWS_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// The inputs of the additions to a placed pod.
pub(super) struct Additions<'a> {
    pub(super) pod: &'a Value,
    pub(super) containers: &'a [Container<'a>],
    /// The platforms on which all containers run.
    pub(super) runs: &'a Runs,
    pub(super) allowed: &'a Allowed,
    /// The operating system to which the pod is sent.
    pub(super) system: System,
    /// The taints that the pod must tolerate.
    pub(super) taints: Vec<Taint>,
    pub(super) builds: &'a Builds,
}

impl Additions<'_> {
    /// Adds the changes that the pod lacks to the verdict.
    pub(super) fn write(&self, verdict: &mut Verdict) {
        // The scheduler does not place a pod that already has a node.
        if self.spec()["nodeName"]
            .as_str()
            .is_some_and(|name| !name.is_empty())
        {
            return;
        }
        let mut added = Vec::new();
        self.select(verdict, &mut added);
        self.name_system(verdict, &mut added);
        self.require(verdict, &mut added);
        self.prefer(verdict, &mut added);
        self.tolerate(verdict, &mut added);
        if !added.is_empty() {
            let text = self.report(added).to_string();
            verdict.set(&["metadata", "annotations", PLACED_BY_IMAGE], text);
        }
    }

    fn spec(&self) -> &Value {
        &self.pod["spec"]
    }

    fn select(&self, verdict: &mut Verdict, added: &mut Vec<&'static str>) {
        if self.spec()["nodeSelector"][OS].is_null() {
            verdict.set(&["spec", "nodeSelector", OS], self.system.as_str());
            added.push("nodeSelector");
        }
    }

    fn name_system(&self, verdict: &mut Verdict, added: &mut Vec<&'static str>) {
        // `spec.os.name` would make validation refuse a pod with such a field, so that pod has only its node
        // selector.
        if self.spec()["os"].is_null() && !self.has_forbidden_field() {
            verdict.set(&["spec", "os", "name"], self.system.as_str());
            added.push("os");
        }
    }

    /// Returns whether the pod has a field that validation forbids together with `spec.os.name`.
    fn has_forbidden_field(&self) -> bool {
        let spec = self.spec();
        let context = &spec["securityContext"];
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let mut contexts = lists
            .into_iter()
            .flat_map(|list| items(&spec[list]))
            .map(|container| &container["securityContext"]);
        let has =
            |owner: &Value, fields: &[&str]| fields.iter().any(|field| !owner[*field].is_null());
        match self.system {
            System::Linux => {
                let options = ["windowsOptions"];
                has(context, &options) || contexts.any(|context| has(context, &options))
            }
            System::Windows => {
                has(spec, &NOT_ON_WINDOWS)
                    || has(context, &NOT_IN_WINDOWS_PODS)
                    || contexts.any(|context| has(context, &NOT_IN_WINDOWS_CONTAINERS))
            }
        }
    }

    /// Adds the images' architectures and builds, unless the pod chooses them itself, to every term of its required
    /// node affinity.
    fn require(&self, verdict: &mut Verdict, added: &mut Vec<&'static str>) {
        let shapes = self.runs.shapes(self.system, self.builds);
        let requirements: Vec<_> = shapes
            .iter()
            .map(|shape| self.requirements(shape))
            .collect();
        // A shape without requirements allows every node, so nothing has to be required.
        if requirements.iter().any(Vec::is_empty) {
            return;
        }
        // The terms are alternatives: one that already names the images' nodes, or that matches no node,
        // stays as it is. This is also what makes a second call add nothing.
        let own = terms(self.spec());
        let is_met = |term: &Value| {
            let has = |list: &Vec<Value>| {
                let expressions = items(&term["matchExpressions"]);
                list.iter().all(|one| expressions.contains(one))
            };
            is_blank(term) || requirements.iter().any(has)
        };
        if !own.is_empty() && own.iter().all(is_met) {
            return;
        }
        let mut all = Vec::new();
        if own.is_empty() {
            let term = |list: &Vec<Value>| json!({"matchExpressions": list});
            all.extend(requirements.iter().map(term));
        }
        for term in own {
            if is_met(term) {
                all.push(term.clone())
            } else {
                // A term is satisfied as a whole, so each alternative of the images needs a copy of the term
                // of its own.
                all.extend(requirements.iter().map(|list| extended(term, list)))
            }
        }
        let path = [
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        ];
        verdict.set(&path, all);
        added.push("requiredAffinity");
    }

    fn requirements(&self, shape: &Shape) -> Vec<Value> {
        let mut list = Vec::new();
        let architectures = shape.architectures.as_ref();
        if let Some(names) =
            architectures.filter(|_| !self.allowed.chooses_architecture(self.system))
        {
            list.push(is_in(ARCH, names.clone()));
        }
        if let Some(hosts) = shape
            .hosts
            .as_ref()
            .filter(|_| !self.allowed.chooses_build())
        {
            let hosts = hosts.iter().map(ToString::to_string).collect();
            list.push(is_in(WINDOWS_BUILD, hosts));
        }
        list
    }

    /// Adds a preference for nodes of the images' own build, which have layers of the base image on disk.
    fn prefer(&self, verdict: &mut Verdict, added: &mut Vec<&'static str>) {
        let field = "preferredDuringSchedulingIgnoredDuringExecution";
        let node_affinity = &self.spec()["affinity"]["nodeAffinity"];
        let shapes = self.runs.shapes(self.system, self.builds);
        let hosts: Vec<Build> = shapes
            .iter()
            .flat_map(|s| s.hosts.iter().flatten())
            .copied()
            .collect();
        // Preferring a build on which not all containers run would prefer nodes that the requirement
        // excludes.
        let own: Vec<_> = self
            .own_builds()
            .into_iter()
            .filter(|b| hosts.contains(b))
            .collect();
        // If all possible hosts have the images' own build, a preference would change nothing.
        let is_choice = hosts.iter().any(|host| !own.contains(host));
        if own.is_empty() || !is_choice || self.allowed.chooses_build() {
            return;
        }
        let own = own.iter().map(ToString::to_string).collect();
        let preference = json!({
            "weight": OWN_BUILD_WEIGHT,
            "preference": {"matchExpressions": [is_in(WINDOWS_BUILD, own)]},
        });
        let mut list = items(&node_affinity[field]).to_vec();
        if !list.contains(&preference) {
            list.push(preference);
            verdict.set(&["spec", "affinity", "nodeAffinity", field], list);
            added.push("preferredAffinity");
        }
    }

    /// Returns the builds for which every container that depends on a build has an image.
    fn own_builds(&self) -> Vec<Build> {
        let builds = self.containers.iter().filter_map(|container| {
            let runs = &container.fact.as_ref()?.runs;
            let spans = runs.platforms().filter_map(|platform| platform.builds);
            let builds: Vec<Build> = spans.map(|span| span.newest).collect();
            Some(builds).filter(|builds| !builds.is_empty())
        });
        let common = builds.reduce(|mut common, builds| {
            common.retain(|build| builds.contains(build));
            common
        });
        common.unwrap_or_default()
    }

    fn tolerate(&self, verdict: &mut Verdict, added: &mut Vec<&'static str>) {
        let mut list = items(&self.spec()["tolerations"]).to_vec();
        let count = list.len();
        for taint in &self.taints {
            if !list.iter().any(|toleration| tolerates(toleration, taint)) {
                list.push(json!({
                    "key": taint.key,
                    "operator": "Equal",
                    "value": taint.value,
                    "effect": taint.effect,
                }));
            }
        }
        if list.len() > count {
            verdict.set(&["spec", "tolerations"], list);
            added.push("tolerations");
        }
    }

    /// Returns the value of the annotation: the operating system, the images that decided it, and what was added,
    /// including additions of earlier calls.
    fn report(&self, added: Vec<&str>) -> Value {
        // A webhook may be called again on its own result (`reinvocationPolicy`); what the first call added
        // must stay reported.
        let before = self.pod["metadata"]["annotations"][PLACED_BY_IMAGE].as_str();
        let before: Value = before
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let mut all: Vec<Value> = items(&before["added"]).to_vec();
        for name in added {
            if !all.iter().any(|known| known == name) {
                all.push(name.into());
            }
        }
        let containers = self.containers.iter().map(|container| {
            let mut entry = json!({"image": container.image});
            if let Some(fact) = &container.fact {
                entry["runsOn"] = fact.runs.to_string().into();
                entry["source"] = fact.source.as_str().into();
                if let Source::Table(because) = &fact.source {
                    entry["because"] = because.clone().into();
                }
            }
            (container.name.to_owned(), entry)
        });
        json!({
            "os": self.system.as_str(),
            "containers": containers.collect::<Map<String, Value>>(),
            "added": all,
        })
    }
}

fn is_in(key: &str, values: Vec<String>) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

/// Returns a term with additional requirements.
fn extended(term: &Value, requirements: &[Value]) -> Value {
    let mut term = term.clone();
    let mut list = items(&term["matchExpressions"]).to_vec();
    list.extend(requirements.iter().cloned());
    term["matchExpressions"] = list.into();
    term
}

/// Returns whether a toleration tolerates a taint, by the scheduler's rules.
fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    let effect = matches!(text("effect"), "") || text("effect") == taint.effect;
    let key = text("key").is_empty() || text("key") == taint.key;
    let value = match text("operator") {
        "Exists" => true,
        // An empty key means every taint, and validation allows it only together with Exists.
        _ => !text("key").is_empty() && text("value") == taint.value,
    };
    effect && key && value
}
