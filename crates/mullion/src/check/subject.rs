//! What is checked: objects with the text they stand in, and the pods in them with everything a rule asks of a pod.

use mullion_api::labels::PRIVATE_IPV4;
use mullion_engine::images::System;
use serde_json::Value;

use super::{
    images::{Fact, Images},
    path::Path,
    placement::{Choice, Placement, list},
};
use crate::why::template::template_path;

/// An object that is checked or that says what the cluster is like.
pub(super) struct Object {
    pub(super) value: Value,
    /// Which of the texts it stands in.
    pub(super) text: usize,
    /// Which document of the text.
    pub(super) document: usize,
    /// Where in the document: the item of a list.
    pub(super) root: Path,
}

impl Object {
    pub(super) fn kind(&self) -> &str {
        self.text_at("/kind")
    }

    pub(super) fn name(&self) -> &str {
        match self.text_at("/metadata/name") {
            "" => self.text_at("/metadata/generateName"),
            name => name,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        match self.text_at("/metadata/namespace") {
            "" => "default",
            name => name,
        }
    }

    pub(super) fn api_version(&self) -> &str {
        self.text_at("/apiVersion")
    }

    /// Whether it is of this kind and API group.
    pub(super) fn is(&self, kind: &str, group: &str) -> bool {
        let own = self
            .api_version()
            .split_once('/')
            .map_or("", |(group, _)| group);
        self.kind() == kind && own == group
    }

    /// Returns the text at a JSON pointer; empty if there is none.
    pub(super) fn text_at(&self, pointer: &str) -> &str {
        self.value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Returns what people call it: `deployment/shop`, with its namespace if it names one.
    pub(super) fn title(&self) -> String {
        let kind = self.kind().to_lowercase();
        match self.text_at("/metadata/namespace") {
            "" => format!("{kind}/{}", self.name()),
            home => format!("{kind}/{home}/{}", self.name()),
        }
    }
}

/// A pod, or the template of pods, of an object.
pub(super) struct Pod<'a> {
    /// Which object.
    pub(super) object: usize,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    /// Where the pod's metadata and spec stand in the object.
    pub(super) path: Path,
    pub(super) meta: &'a Value,
    pub(super) spec: &'a Value,
    pub(super) containers: Vec<Container<'a>>,
    pub(super) placement: Placement,
}

/// A container of a pod.
pub(super) struct Container<'a> {
    /// Where it stands in the object.
    pub(super) path: Path,
    pub(super) value: &'a Value,
    pub(super) name: &'a str,
    pub(super) image: &'a str,
    /// What is known of the image.
    pub(super) fact: Option<Fact>,
    pub(super) host_process: bool,
}

impl<'a> Pod<'a> {
    /// Returns the pod that an object is or makes.
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

    /// Returns the path of fields of the pod's spec.
    pub(super) fn at(&self, fields: &[&str]) -> Path {
        self.path.key("spec").keys(fields)
    }

    /// Returns the first container whose image is of one system alone.
    pub(super) fn only_of(&self, system: System) -> Option<&Container<'a>> {
        self.containers.iter().find(|container| {
            container
                .fact
                .as_ref()
                .is_some_and(|fact| fact.only_of(system))
        })
    }

    /// Whether every image is of that system alone.
    pub(super) fn all_of(&self, system: System) -> bool {
        let is = |container: &Container<'_>| {
            container
                .fact
                .as_ref()
                .is_some_and(|fact| fact.only_of(system))
        };
        !self.containers.is_empty() && self.containers.iter().all(is)
    }

    /// Returns the system that its images want, if they agree as far as they are known.
    pub(super) fn wanted(&self) -> Option<System> {
        match (self.only_of(System::Linux), self.only_of(System::Windows)) {
            (Some(_), None) => Some(System::Linux),
            (None, Some(_)) => Some(System::Windows),
            _ => None,
        }
    }

    /// Returns the system it says or its images want.
    pub(super) fn system(&self) -> Option<System> {
        match self.placement.os {
            Choice::One(system) => Some(system),
            Choice::Open | Choice::Unknown => self.named().or_else(|| self.wanted()),
        }
    }

    /// Returns the system that `spec.os.name` names.
    pub(super) fn named(&self) -> Option<System> {
        System::of_label(self.spec["os"]["name"].as_str()?)
    }

    pub(super) fn is_windows(&self) -> bool {
        self.system() == Some(System::Windows)
    }

    pub(super) fn host_network(&self) -> bool {
        self.spec["hostNetwork"] == true
    }

    /// Whether it requests an address by itself, as the webhook would make it.
    pub(super) fn requests_address(&self) -> bool {
        list(&self.spec["containers"])
            .any(|own| !own["resources"]["requests"][PRIVATE_IPV4].is_null())
    }

    /// Whether a container of it is a HostProcess container.
    pub(super) fn host_process(&self) -> bool {
        self.containers
            .iter()
            .any(|container| container.host_process)
    }

    /// Returns how many pods it stands for, if that is written.
    pub(super) fn replicas(&self, objects: &[Object]) -> u64 {
        let spec = &objects[self.object].value["spec"];
        match self.kind {
            "Pod" => 1,
            "Job" | "CronJob" => spec["parallelism"].as_u64().unwrap_or(1),
            "DaemonSet" => 1,
            _ => spec["replicas"].as_u64().unwrap_or(1),
        }
    }

    /// Whether labels of a selector (`key: value`) are its labels; an empty selector is nobody's.
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
    /// Returns a quantity of its resources: `requests` or `limits`.
    pub(super) fn quantity(&self, kind: &str, name: &str) -> Option<f64> {
        amount(&self.value["resources"][kind][name])
    }

    /// Returns the words of its command and arguments.
    pub(super) fn words(&self) -> Vec<&str> {
        let lists = ["command", "args"].into_iter();
        lists
            .flat_map(|list| self.value[list].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect()
    }
}

/// Returns the images that an object's pods name.
pub(super) fn images(object: &Object) -> Vec<String> {
    let containers = containers_of(spec_of(object));
    containers
        .filter_map(|container| container["image"].as_str().map(str::to_owned))
        .collect()
}

/// A service account that a pod runs as, and a GMSACredentialSpec that the pod names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CredentialUse {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) name: String,
}

impl CredentialUse {
    /// The use that a pod with this spec makes of a credential spec.
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

/// Returns the uses that an object's pods make of credential specs.
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
    own.as_bool().or(pods.as_bool()).unwrap_or(false)
}

/// Returns a quantity as a number: bytes of memory, cores of CPU.
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
