//! Defines what is checked: objects with their positions in a text, and their pods with everything that rules need to know about them.

use mullion_api::labels::PRIVATE_IPV4;
use mullion_engine::images::System;
use serde_json::Value;

use super::{
    images::{Fact, Images},
    path::Path,
    placement::{Choice, Placement, list},
};
use crate::why::template::template_path;

/// An object that is checked or that describes the cluster.
pub(super) struct Object {
    pub(super) value: Value,
    /// The index of the text that has the object; [`NO_TEXT`] for an object of a cluster.
    pub(super) text: usize,
    /// The index of the document in the text.
    pub(super) document: usize,
    /// The path in the document; not empty for an item of a list.
    pub(super) root: Path,
    /// Whether the object is a part of one, which kustomize merges into another.
    pub(super) is_patch: bool,
}

/// The index of the text of objects that come from a cluster.
pub(super) const NO_TEXT: usize = usize::MAX;

impl Object {
    /// Returns whether the object comes from a cluster.
    pub(super) fn is_live(&self) -> bool {
        self.text == NO_TEXT
    }

    /// Returns whether the object is not what is applied: kustomize merges it into another, or a tool reads it and drops it.
    pub(super) fn is_incomplete(&self) -> bool {
        let annotations = &self.value["metadata"]["annotations"];
        self.is_patch
            || annotations["config.kubernetes.io/local-config"] == "true"
            || has_directive(&self.value)
    }

    pub(super) fn kind(&self) -> &str {
        self.text_at("/kind")
    }

    pub(super) fn name(&self) -> &str {
        match self.text_at("/metadata/name") {
            // The server chooses the rest of such a name when the object is created.
            "" => self.text_at("/metadata/generateName"),
            name => name,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        match self.text_at("/metadata/namespace") {
            // A file does not say to which namespace it will be applied; without `-n` it is this one.
            "" => "default",
            name => name,
        }
    }

    pub(super) fn api_version(&self) -> &str {
        self.text_at("/apiVersion")
    }

    /// Returns whether the object has this kind and API group.
    pub(super) fn is(&self, kind: &str, group: &str) -> bool {
        let own = self
            .api_version()
            .split_once('/')
            .map_or("", |(group, _)| group);
        self.kind() == kind && own == group
    }

    /// Returns the key that stands for a missing field of the envelope (`kind` or `apiVersion`), such as `Kind` or `api_version`. Keys with
    /// other letters, such as `bind` and `find`, are fields of other programs.
    pub(super) fn misspelt(&self, field: &str) -> Option<&str> {
        let wanted = field.to_lowercase();
        let map = self
            .value
            .as_object()
            .filter(|map| !map.contains_key(field))?;
        let is_meant = |key: &str| key.to_lowercase().replace(['_', '-'], "") == wanted;
        let mut meant = map
            .iter()
            .filter(|(key, value)| value.is_string() && is_meant(key));
        meant.next().map(|(key, _)| key.as_str())
    }

    /// Returns the string at a JSON pointer; empty if there is none.
    pub(super) fn text_at(&self, pointer: &str) -> &str {
        self.value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Returns the object's name for messages: `deployment/shop`, with its namespace if it has one.
    pub(super) fn title(&self) -> String {
        let kind = match self.kind() {
            "" => "object".to_owned(),
            kind => kind.to_lowercase(),
        };
        match self.text_at("/metadata/namespace") {
            "" => format!("{kind}/{}", self.name()),
            home => format!("{kind}/{home}/{}", self.name()),
        }
    }
}

/// Returns whether a value has a directive of a strategic merge patch anywhere, such as `$patch: delete`.
fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(map) => map
            .iter()
            .any(|(key, value)| key.starts_with('$') || has_directive(value)),
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}

/// A pod, or the pod template of a workload.
pub(super) struct Pod<'a> {
    /// The index of the object.
    pub(super) object: usize,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    /// The path in the object of the pod's metadata and spec.
    pub(super) path: Path,
    pub(super) meta: &'a Value,
    pub(super) spec: &'a Value,
    pub(super) containers: Vec<Container<'a>>,
    pub(super) placement: Placement,
}

/// A container of a pod.
pub(super) struct Container<'a> {
    /// The path of the container in the object.
    pub(super) path: Path,
    pub(super) value: &'a Value,
    pub(super) name: &'a str,
    pub(super) image: &'a str,
    /// What is known about the image.
    pub(super) fact: Option<Fact>,
    pub(super) host_process: bool,
}

impl<'a> Pod<'a> {
    /// Returns the pod that an object is, or its pod template.
    pub(super) fn of(
        object: &'a Object,
        index: usize,
        images: &dyn Images,
        objects: &[Object],
    ) -> Option<Self> {
        let fields = template_path(object.kind())?;
        let path = Path::of(fields);
        let template = path.get(&object.value)?;
        let spec = template.get("spec").filter(|spec| spec.is_object())?;
        let spec_path = path.key("spec");
        let mut containers = Vec::new();
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let items = spec[list].as_array().into_iter().flatten();
            for (index, value) in items.enumerate() {
                let image = value["image"].as_str().unwrap_or_default();
                containers.push(Container {
                    path: spec_path.key(list).index(index),
                    value,
                    name: value["name"].as_str().unwrap_or_default(),
                    image,
                    fact: images.fact(image),
                    host_process: is_host_process(value, spec),
                });
            }
        }
        Some(Pod {
            object: index,
            kind: object.kind(),
            namespace: object.namespace(),
            meta: &template["metadata"],
            spec,
            containers,
            placement: Placement::of(spec, objects),
            path,
        })
    }

    /// Returns the path in the object of a field of the pod's spec.
    pub(super) fn at(&self, fields: &[&str]) -> Path {
        self.path.key("spec").keys(fields)
    }

    /// Returns the first container whose image is for this operating system only.
    pub(super) fn only_of(&self, system: System) -> Option<&Container<'a>> {
        self.containers.iter().find(|container| {
            container
                .fact
                .as_ref()
                .is_some_and(|fact| fact.only_of(system))
        })
    }

    /// Returns whether every image is for this operating system only.
    pub(super) fn all_of(&self, system: System) -> bool {
        let is = |container: &Container<'_>| {
            container
                .fact
                .as_ref()
                .is_some_and(|fact| fact.only_of(system))
        };
        // A pod without containers is invalid and not a pod for both systems.
        !self.containers.is_empty() && self.containers.iter().all(is)
    }

    /// Returns the operating system that the images need, if all images with known facts agree.
    pub(super) fn wanted(&self) -> Option<System> {
        match (self.only_of(System::Linux), self.only_of(System::Windows)) {
            (Some(_), None) => Some(System::Linux),
            (None, Some(_)) => Some(System::Windows),
            _ => None,
        }
    }

    /// Returns the operating system that the pod selects, or else the one that its images need.
    pub(super) fn system(&self) -> Option<System> {
        match self.placement.os {
            Choice::One(system) => Some(system),
            Choice::Open | Choice::Unknown => self.named().or_else(|| self.wanted()),
        }
    }

    /// Returns the operating system in `spec.os.name`.
    pub(super) fn named(&self) -> Option<System> {
        System::of_label(self.spec["os"]["name"].as_str()?)
    }

    pub(super) fn is_windows(&self) -> bool {
        self.system() == Some(System::Windows)
    }

    pub(super) fn host_network(&self) -> bool {
        self.spec["hostNetwork"] == true
    }

    /// Returns whether the pod's spec requests an address, which the webhook would otherwise add.
    pub(super) fn requests_address(&self) -> bool {
        list(&self.spec["containers"])
            .any(|own| !own["resources"]["requests"][PRIVATE_IPV4].is_null())
    }

    /// Returns whether any container of the pod is a HostProcess container.
    pub(super) fn host_process(&self) -> bool {
        self.containers
            .iter()
            .any(|container| container.host_process)
    }

    /// Returns how many pods the object creates, as far as its fields say.
    pub(super) fn replicas(&self, objects: &[Object]) -> u64 {
        let spec = &objects[self.object].value["spec"];
        match self.kind {
            "Pod" => 1,
            "Job" => spec["parallelism"].as_u64().unwrap_or(1),
            "CronJob" => {
                let job = &spec["jobTemplate"]["spec"];
                job["parallelism"].as_u64().unwrap_or(1)
            }
            "DaemonSet" => 1,
            _ => spec["replicas"].as_u64().unwrap_or(1),
        }
    }

    /// Returns whether the pod has all labels of a selector (`key: value`); an empty selector matches no pod.
    pub(super) fn has_labels(&self, selector: &Value) -> bool {
        let own = &self.meta["labels"];
        let Some(wanted) = selector.as_object().filter(|wanted| !wanted.is_empty()) else {
            return false;
        };
        wanted
            .iter()
            .all(|(key, value)| own.get(key) == Some(value))
    }
}

impl Container<'_> {
    /// Returns a quantity of the container's resources, from `requests` or `limits`.
    pub(super) fn quantity(&self, kind: &str, name: &str) -> Option<f64> {
        amount(&self.value["resources"][kind][name])
    }

    /// Returns the container's command and arguments.
    pub(super) fn command_line(&self) -> Vec<&str> {
        let lists = ["command", "args"].into_iter();
        lists
            .flat_map(|list| self.value[list].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect()
    }
}

/// Returns the images of an object's pods.
pub(super) fn images(object: &Object) -> Vec<String> {
    let containers = containers_of(spec_of(object));
    containers
        .filter_map(|container| container["image"].as_str().map(str::to_owned))
        .collect()
}

/// The use of a GMSACredentialSpec by the service account of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CredentialUse {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) name: String,
}

impl CredentialUse {
    /// Returns the use of a credential spec by a pod with this spec.
    pub(super) fn of(namespace: &str, spec: &Value, name: &str) -> Self {
        let account = spec["serviceAccountName"].as_str().unwrap_or("default");
        let [namespace, account, name] = [namespace, account, name].map(str::to_owned);
        CredentialUse {
            namespace,
            account,
            name,
        }
    }
}

/// Returns all uses of credential specs by an object's pods.
pub(super) fn credential_uses(object: &Object) -> Vec<CredentialUse> {
    let spec = spec_of(object);
    let owners = containers_of(spec).chain([spec]);
    let names = owners.filter_map(|owner| {
        owner["securityContext"]["windowsOptions"]["gmsaCredentialSpecName"].as_str()
    });
    let uses = names.map(|name| CredentialUse::of(object.namespace(), spec, name));
    uses.collect()
}

fn spec_of(object: &Object) -> &Value {
    let fields = template_path(object.kind());
    let template = fields.map(|fields| {
        let fields = fields.iter();
        fields.fold(&object.value, |value, field| &value[*field])
    });
    template.map_or(&Value::Null, |template| &template["spec"])
}

fn containers_of(spec: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].into_iter();
    lists.flat_map(|list| spec[list].as_array().into_iter().flatten())
}

fn is_host_process(container: &Value, spec: &Value) -> bool {
    let own = &container["securityContext"]["windowsOptions"]["hostProcess"];
    let pods = &spec["securityContext"]["windowsOptions"]["hostProcess"];
    // A container's option overrides the pod's.
    own.as_bool().or(pods.as_bool()).unwrap_or(false)
}

/// Returns a quantity as a number: bytes of memory, or CPU cores.
pub(crate) fn amount(value: &Value) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 12] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("m", 0.001),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("u", 1e-6),
        ("n", 1e-9),
        ("", 1.0),
    ];
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text,
        _ => return None,
    };
    SUFFIXES.iter().find_map(|(suffix, factor)| {
        let number: f64 = text.strip_suffix(suffix)?.parse().ok()?;
        Some(number * factor)
    })
}
