//! Reads a kubelet's settings from user data: the labels and taints with which its node registers, and the settings that change its allocatable
//! resources.
//!
//! User data is not run. It is read as the images of EKS read it: nodeadm's NodeConfig, Bottlerocket's settings, and arguments of the kubelet
//! wherever a script has them (`--node-labels`, `--register-with-taints`, `--max-pods` and reservations). What is in no such form changes nothing.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use mullion_api::{
    ami::AmiFamily,
    eksctl::{KubernetesVersion, Taint},
    karpenter::{EC2NodeClassSpec, KubeletConfiguration},
};
use mullion_cloud::{KubeletSettings, NodeTemplate, Registration};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A kubelet's settings in user data.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kubelet {
    pub(super) registration: Registration,
    /// The settings by their names in the kubelet's configuration file.
    settings: Map<String, Value>,
}

/// nodeadm's document, as far as it is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeConfig {
    kind: String,
    spec: NodeConfigSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeConfigSpec {
    kubelet: NodeConfigKubelet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeConfigKubelet {
    config: Map<String, Value>,
    flags: Vec<String>,
}

/// Bottlerocket's settings, as far as they are read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bottlerocket {
    settings: BottlerocketSettings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BottlerocketSettings {
    kubernetes: BottlerocketKubernetes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct BottlerocketKubernetes {
    node_labels: BTreeMap<String, String>,
    node_taints: BTreeMap<String, Vec<String>>,
    max_pods: Option<i64>,
    kube_reserved: BTreeMap<String, String>,
    system_reserved: BTreeMap<String, String>,
    eviction_hard: BTreeMap<String, String>,
}

/// The arguments of the kubelet that are maps in the configuration file, each with the separator of key and value.
const MAPS: [(&str, &str, char); 4] = [
    ("--kube-reserved", "kubeReserved", '='),
    ("--system-reserved", "systemReserved", '='),
    ("--eviction-hard", "evictionHard", '<'),
    ("--eviction-soft", "evictionSoft", '<'),
];
/// The arguments of the kubelet that are numbers in the configuration file.
const NUMBERS: [(&str, &str); 2] = [
    ("--max-pods", "maxPods"),
    ("--pods-per-core", "podsPerCore"),
];

impl Kubelet {
    /// Reads user data in base64.
    pub(super) fn read(user_data: &str, family: AmiFamily) -> Self {
        let bytes = BASE64_STANDARD.decode(user_data).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut kubelet = Self::default();
        match family {
            AmiFamily::Bottlerocket => kubelet.read_bottlerocket(&text),
            _ => {
                kubelet.read_node_configs(&text);
                kubelet.read_arguments(&text);
            }
        }
        kubelet
    }

    /// Returns the settings without those that cannot be read.
    pub(super) fn settings(&self) -> KubeletSettings {
        let config = serde_json::from_value(Value::Object(self.settings.clone()));
        let config: KubeletConfiguration = config.unwrap_or_default();
        let class = EC2NodeClassSpec {
            ami_family: Some("AL2023".to_owned()),
            kubelet: Some(config),
            ..EC2NodeClassSpec::default()
        };
        let template = NodeTemplate::from_class(&class, KubernetesVersion::NEWEST);
        template.map(|own| own.kubelet).unwrap_or_default()
    }

    fn read_node_configs(&mut self, text: &str) {
        // A part of a MIME archive begins after an empty line and ends before the next boundary.
        let parts = text
            .split("\n--")
            .flat_map(|part| match part.split_once("\n\n") {
                Some((_, body)) => [part, body],
                None => [part, ""],
            });
        for part in parts.filter(|part| part.contains("NodeConfig")) {
            let Ok(config) = serde_saphyr::from_str::<NodeConfig>(part) else {
                continue;
            };
            if config.kind != "NodeConfig" {
                continue;
            }
            let kubelet = config.spec.kubelet;
            self.settings.extend(kubelet.config);
            for flag in &kubelet.flags {
                self.read_arguments(flag);
            }
        }
        let taints = self.settings.remove("registerWithTaints");
        for taint in taints
            .iter()
            .flat_map(|all| all.as_array().into_iter().flatten())
        {
            let text = |name: &str| taint[name].as_str().unwrap_or_default();
            self.taint(text("key"), text("value"), text("effect"));
        }
    }

    fn read_bottlerocket(&mut self, text: &str) {
        let Ok(settings) = toml::from_str::<Bottlerocket>(text) else {
            return;
        };
        let own = settings.settings.kubernetes;
        self.registration.labels.extend(own.node_labels);
        for (key, values) in own.node_taints {
            for value in values {
                let (value, effect) = value.split_once(':').unwrap_or(("", &value));
                self.taint(&key, value, effect);
            }
        }
        if let Some(most) = own.max_pods {
            self.settings.insert("maxPods".to_owned(), most.into());
        }
        for (name, map) in [
            ("kubeReserved", own.kube_reserved),
            ("systemReserved", own.system_reserved),
            ("evictionHard", own.eviction_hard),
        ] {
            if !map.is_empty() {
                self.settings.insert(name.to_owned(), json!(map));
            }
        }
    }

    fn read_arguments(&mut self, text: &str) {
        for labels in arguments(text, "--node-labels") {
            let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            self.registration.labels.extend(pairs);
        }
        for taints in arguments(text, "--register-with-taints") {
            for taint in taints.split(',') {
                let Some((pair, effect)) = taint.rsplit_once(':') else {
                    continue;
                };
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                self.taint(key, value, effect);
            }
        }
        for (argument, name) in NUMBERS {
            for number in arguments(text, argument).filter_map(|text| text.parse::<i64>().ok()) {
                self.settings.insert(name.to_owned(), number.into());
            }
        }
        for (argument, name, between) in MAPS {
            for map in arguments(text, argument) {
                let pairs = map.split(',').filter_map(|pair| pair.split_once(between));
                let pairs = pairs.map(|(key, value)| (key.to_owned(), Value::from(value)));
                self.settings
                    .insert(name.to_owned(), Value::Object(pairs.collect()));
            }
        }
    }

    fn taint(&mut self, key: &str, value: &str, effect: &str) {
        let Ok(effect) = effect.parse() else { return };
        let taint = Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        };
        let taints = &mut self.registration.taints;
        if !key.is_empty() && !taints.contains(&taint) {
            taints.push(taint);
        }
    }
}

/// Returns the values of an argument, which may stand in quotes: `--node-labels="a=b,c=d"`.
fn arguments<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name).skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix(['=', ' '])?;
        let quoted = rest.strip_prefix('"');
        let ends = |c: char| match quoted {
            Some(_) => c == '"',
            None => c.is_whitespace() || c == '"' || c == '\'',
        };
        quoted.unwrap_or(rest).split(ends).next()
    })
}

#[cfg(test)]
mod tests {
    use mullion_api::ami::{WindowsEdition, WindowsRelease};
    use mullion_cloud::Threshold;

    use super::*;

    fn read(text: &str, family: AmiFamily) -> Kubelet {
        Kubelet::read(&BASE64_STANDARD.encode(text), family)
    }

    fn taints(kubelet: &Kubelet) -> Vec<String> {
        let taints = kubelet.registration.taints.iter();
        let text = |own: &Taint| format!("{}={}:{}", own.key, own.value, own.effect.as_str());
        taints.map(text).collect()
    }

    #[test]
    fn a_node_config_in_a_mime_archive_is_read() {
        let kubelet = read(
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n--//\nContent-Type: application/node.eks.aws\n\n\
             # Karpenter Generated NodeConfig\napiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster:\n    name: demo\n  \
             kubelet:\n    config:\n      maxPods: 29\n      kubeReserved:\n        cpu: 70m\n      registerWithTaints:\n      \
             - key: karpenter.sh/unregistered\n        effect: NoExecute\n    flags:\n    - --node-labels=\"team=web,karpenter.sh/nodepool=default\"\n\n\
             --//\nContent-Type: text/x-shellscript\n\n#!/bin/sh\necho NodeConfig\n--//--\n",
            AmiFamily::AmazonLinux2023,
        );
        assert_eq!(taints(&kubelet), ["karpenter.sh/unregistered=:NoExecute"]);
        assert_eq!(kubelet.registration.labels["team"], "web");
        assert_eq!(kubelet.registration.labels.len(), 2);
        let settings = kubelet.settings();
        assert_eq!(settings.max_pods, Some(29));
        assert_eq!(settings.kube_reserved.cpu_milli, Some(70));
    }

    #[test]
    fn arguments_of_a_windows_script_are_read() {
        let kubelet = read(
            "<powershell>\n& $EKSBootstrapScriptFile -EKSClusterName 'demo' -KubeletExtraArgs '--node-labels=\"a=b\" \
             --register-with-taints=\"os=windows:NoSchedule,karpenter.sh/unregistered:NoExecute\" --max-pods=110 \
             --eviction-hard=\"memory.available<5%\"' 3>&1\n</powershell>",
            AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core),
        );
        assert_eq!(
            taints(&kubelet),
            [
                "os=windows:NoSchedule",
                "karpenter.sh/unregistered=:NoExecute"
            ]
        );
        assert_eq!(kubelet.registration.labels["a"], "b");
        let settings = kubelet.settings();
        assert_eq!(settings.max_pods, Some(110));
        assert_eq!(settings.memory_available, Some(Threshold::Share(500)));
    }

    #[test]
    fn settings_of_bottlerocket_are_read() {
        let kubelet = read(
            "[settings]\n[settings.kubernetes]\ncluster-name = 'demo'\nmax-pods = 58\n[settings.kubernetes.node-labels]\n'a/b' = 'c'\n\
             [settings.kubernetes.node-taints]\n'dedicated' = ['ml:NoSchedule']\n",
            AmiFamily::Bottlerocket,
        );
        assert_eq!(taints(&kubelet), ["dedicated=ml:NoSchedule"]);
        assert_eq!(kubelet.registration.labels["a/b"], "c");
        assert_eq!(kubelet.settings().max_pods, Some(58));
    }

    #[test]
    fn user_data_of_any_other_form_changes_nothing() {
        for text in [
            "",
            "#!/bin/sh\necho hello",
            "kind: NodeConfig: wrong",
            "--node-labels=",
        ] {
            for family in [AmiFamily::AmazonLinux2, AmiFamily::Bottlerocket] {
                assert_eq!(read(text, family), Kubelet::default(), "{text:?}");
            }
        }
    }
}
