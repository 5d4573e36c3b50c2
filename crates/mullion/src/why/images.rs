//! Determines what the images of a pod run on, and how that is known: from the annotation that placement by image wrote to the pod, or else
//! from the names of the images.

use mullion_api::labels::{self, RUNS_ON};
use mullion_engine::{
    images::{Host, ImageRef, ImageTable, Runs, System},
    model::{NodeSpec, PodSpec},
    remedy::Change,
    windows::Builds,
};
use serde::Serialize;
use serde_json::Value;

use crate::near::nearest;

/// The platforms that one image runs on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImagePlatforms {
    /// The name of the container, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// The image as the pod names it.
    image: String,
    /// The platforms, as in `linux/amd64`, separated by commas; `None` if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_on: Option<String>,
    /// The source of this knowledge: `annotation`, `registry` or `table`.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The tag or repository that a guess is based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

impl ImagePlatforms {
    /// Returns the platforms that the image runs on, if they are known.
    fn runs(&self) -> Option<Runs> {
        self.runs_on.as_ref()?.parse().ok()
    }

    /// Returns the facts as a sentence without a full stop.
    pub(super) fn text(&self) -> String {
        let subject = match &self.container {
            Some(container) => format!("Container {container} ({})", self.image),
            None => format!("Image {}", self.image),
        };
        let Some(runs) = self.runs() else {
            return format!("{subject}: nobody knows what it runs on");
        };
        let source = match (self.source.as_deref(), &self.because) {
            (_, Some(because)) => format!("by {because} (a guess)"),
            (Some("registry"), None) => "says its registry".to_owned(),
            _ => format!("says the annotation {RUNS_ON}"),
        };
        format!("{subject} runs on {}, {source}", runs.in_words())
    }
}

/// Reads the annotation that placement by image wrote to a pod.
pub(super) fn of_annotation(text: &str) -> Vec<ImagePlatforms> {
    let report: Value = serde_json::from_str(text).unwrap_or_default();
    let containers = report["containers"].as_object().into_iter().flatten();
    let word = |(name, entry): (&String, &Value)| {
        let text = |field: &str| entry[field].as_str().map(str::to_owned);
        ImagePlatforms {
            container: Some(name.clone()),
            image: text("image").unwrap_or_default(),
            runs_on: text("runsOn"),
            source: text("source"),
            because: text("because"),
        }
    };
    containers.map(word).collect()
}

/// Reads from a pod's own annotation what its images run on; empty if the pod has none that can be read.
pub(super) fn declared(pod: &Value) -> Vec<ImagePlatforms> {
    let text = pod["metadata"]["annotations"][RUNS_ON].as_str();
    let Some(runs) = text.and_then(|text| text.parse::<Runs>().ok()) else {
        return Vec::new();
    };
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.filter_map(|list| pod["spec"][list].as_array());
    let word = |container: &Value| {
        let text = |field: &str| container[field].as_str().map(str::to_owned);
        ImagePlatforms {
            container: text("name"),
            image: text("image").unwrap_or_default(),
            runs_on: Some(runs.to_string()),
            source: Some("annotation".to_owned()),
            because: None,
        }
    };
    containers.flatten().map(word).collect()
}

/// Returns the platforms on which all of these images run; `None` if nothing is known of any. Images of which nothing is known run everywhere.
pub(super) fn common(words: &[ImagePlatforms], table: &ImageTable) -> Option<Runs> {
    let known = words.iter().filter_map(|word| word.runs_on.as_ref());
    let known = known.filter_map(|text| text.parse::<Runs>().ok());
    known.reduce(|all, own| all.intersection(&own, table.builds()))
}

/// Returns the operating system that a pod asks for, if one of its images does not run there.
pub(super) fn wrong_system(pod: &PodSpec, words: &[ImagePlatforms]) -> Option<&'static str> {
    let system = wanted(pod)?;
    let known = words.iter().filter_map(|word| word.runs_on.as_ref());
    let mut known = known.filter_map(|text| text.parse::<Runs>().ok());
    known.any(|runs| !runs.has(system)).then(|| system.as_str())
}

/// Returns the operating system that a pod asks for.
fn wanted(pod: &PodSpec) -> Option<System> {
    // The selector first: kube-scheduler obeys it, and ignores `spec.os`.
    let by_selector = pod.template.node_selector.get(labels::OS);
    let named = by_selector.or(pod.template.os.as_ref())?;
    // A misspelt name means the system that it is most like.
    System::of_label(nearest(named, [labels::OS_LINUX, labels::OS_WINDOWS], 2)?)
}

/// Guesses from the names of a pod's images what they run on. Returns nothing if all run on Linux, and on Windows if the pod asks for
/// Windows: then the images are hardly the user's question.
pub(super) fn guessed(pod: &PodSpec, table: &ImageTable) -> Vec<ImagePlatforms> {
    let words = all_guessed(pod, table);
    let all_on = |system: System| {
        let known = words.iter().filter_map(ImagePlatforms::runs);
        known.into_iter().all(|runs| runs.has(system))
    };
    let for_windows = wanted(pod) == Some(System::Windows);
    if all_on(System::Linux) && (all_on(System::Windows) || !for_windows) {
        Vec::new()
    } else {
        words
    }
}

/// Guesses from the names of all images of a pod what they run on.
pub(super) fn all_guessed(pod: &PodSpec, table: &ImageTable) -> Vec<ImagePlatforms> {
    let containers = pod.template.containers.iter();
    let containers = containers.chain(&pod.template.init_containers);
    let words = containers.map(|container| {
        let image = ImageRef::parse(&container.image).ok();
        let guess = image.and_then(|image| table.guess(&image));
        let (runs, because) = guess.map(|guess| (guess.runs, guess.because)).unzip();
        ImagePlatforms {
            container: None,
            image: container.image.clone(),
            runs_on: runs.as_ref().map(ToString::to_string),
            source: runs.map(|_| "table".to_owned()),
            because,
        }
    });
    words.collect()
}

/// The node of a pod, on which one of its images does not start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WrongNode {
    /// What is wrong, as a sentence without a full stop.
    pub(super) reason: String,
    /// What the user can do, as a sentence without a full stop.
    pub(super) advice: String,
    /// Why the pod gets no place even so, as a sentence without a full stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remains: Option<String>,
    /// The first part of the advice as a change of the pod; `None` if the pod only has to pass through the scheduler.
    #[serde(skip)]
    pub(super) change: Option<Change>,
    /// The first and the last part of the advice.
    #[serde(skip)]
    parts: [String; 2],
}

impl WrongNode {
    /// Adds the changes that the pod needs besides to be scheduled.
    pub(super) fn and(mut self, changes: &[String]) -> Self {
        let [first, then] = &self.parts;
        let more: String = changes.iter().map(|own| format!(", {own}")).collect();
        self.advice = format!("{first}{more}, and {then}");
        self
    }
}

/// Returns why an image of a pod does not start on the pod's node: the node has another operating system, architecture or Windows build.
pub(super) fn wrong_node(
    pod: &PodSpec,
    words: &[ImagePlatforms],
    node: &NodeSpec,
    builds: &Builds,
) -> Option<WrongNode> {
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let system = System::of_label(label(labels::OS)?)?;
    let build = label(labels::WINDOWS_BUILD);
    let host = Host {
        system,
        architecture: label(labels::ARCH),
        build: build.and_then(|build| build.parse().ok()),
    };
    let does_not = words.iter().find_map(|word| {
        let mut runs = word.runs()?;
        // HostProcess containers run on hosts of any build, and share the host's network.
        if pod.template.host_network {
            runs = runs.on_any_build();
        }
        (!runs.runs_on(host, builds)).then_some((word, runs))
    });
    let (word, runs) = does_not?;
    let (name, image) = (&node.name, &word.image);
    let kind = match (build, host.architecture) {
        (Some(build), _) => format!("a {system} node of build {build}"),
        (None, Some(architecture)) => format!("a {system} node ({architecture})"),
        (None, None) => format!("a {system} node"),
    };
    let (key, value) = if !runs.has(system) {
        let own = runs.systems().into_iter().next();
        (labels::OS, own.map_or("linux", System::as_str).to_owned())
    } else if let Some(build) = runs.newest_build().filter(|_| system == System::Windows) {
        (labels::WINDOWS_BUILD, build.to_string())
    } else {
        let mut own = runs.platforms().filter_map(|own| own.architecture.as_ref());
        let own = own.next().map_or("amd64", String::as_str);
        (labels::ARCH, own.to_owned())
    };
    let selected = pod.template.node_selector.get(key);
    // The scheduler heeds the selector, so a pod that has it has passed the scheduler by.
    let change = (selected != Some(&value)).then(|| Change::Select {
        key: key.to_owned(),
        wanted: selected.cloned().unwrap_or_default(),
        instead: Some(value.clone()),
    });
    let named = pod.template.os.as_ref();
    // What a controller's pod selects stands in the template of its workload.
    let whose = match pod.template.owner {
        Some(_) => "its workload's template",
        None => "the pod's node selector",
    };
    let first = match &change {
        None => "Leave out spec.nodeName, which passes the scheduler by".to_owned(),
        Some(_) if key == labels::OS && named.is_some_and(|named| *named != value) => {
            format!("Select {key}: {value} in {whose} and name {value} in spec.os.name")
        }
        Some(_) => format!("Select {key}: {value} in {whose}"),
    };
    let then = match pod.template.owner {
        Some(_) => "delete the pod so that its controller makes another",
        None => "create the pod anew: no controller does",
    };
    let wrong = WrongNode {
        reason: format!("Image {image} does not start on {name}, {kind}"),
        advice: String::new(),
        remains: None,
        change,
        parts: [first, then.to_owned()],
    };
    Some(wrong.and(&[]))
}

#[cfg(test)]
mod tests {
    use mullion_engine::model::Container;
    use serde_json::json;

    use super::*;

    fn texts(words: &[ImagePlatforms]) -> Vec<String> {
        words.iter().map(ImagePlatforms::text).collect()
    }

    #[test]
    fn an_annotation_says_what_each_container_runs_on_and_from_which_source() {
        let report = json!({"os": "windows", "containers": {
            "log": {"image": "r/log:1"},
            "proxy": {"image": "nginx", "runsOn": "linux", "source": "table", "because": "the repository docker.io/library/nginx"},
            "web": {"image": "r/web:1", "runsOn": "windows/amd64:10.0.20348", "source": "registry"},
            "zip": {"image": "r/zip:1", "runsOn": "windows", "source": "annotation"},
        }});
        assert_eq!(
            texts(&of_annotation(&report.to_string())),
            [
                "Container log (r/log:1): nobody knows what it runs on",
                "Container proxy (nginx) runs on Linux, by the repository docker.io/library/nginx (a guess)",
                "Container web (r/web:1) runs on Windows (amd64) of build 10.0.20348, says its registry",
                "Container zip (r/zip:1) runs on Windows, says the annotation mullion.dev/runs-on",
            ]
        );
        assert!(of_annotation("no JSON").is_empty());
    }

    #[test]
    fn an_image_that_does_not_start_on_its_node_says_so_with_the_label_to_select() {
        let node = |labels: &[(&str, &str)]| {
            let labels = labels.iter();
            let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            NodeSpec {
                labels: labels.collect(),
                ..NodeSpec::named("n0".to_owned())
            }
        };
        let table = ImageTable::default();
        let wrong = |image: &str, node: &NodeSpec| {
            let mut pod = PodSpec::default();
            pod.template.containers = vec![Container {
                image: image.to_owned(),
                ..Container::default()
            }];
            let words = all_guessed(&pod, &table);
            let wrong = wrong_node(&pod, &words, node, table.builds())?;
            Some((wrong.reason, wrong.advice))
        };
        let select = |label: &str| {
            format!(
                "Select {label} in the pod's node selector, and create the pod anew: no controller does"
            )
        };
        let old = node(&[
            ("kubernetes.io/os", "windows"),
            ("node.kubernetes.io/windows-build", "10.0.17763"),
        ]);
        let linux = node(&[("kubernetes.io/os", "linux")]);
        assert_eq!(wrong("nginx", &linux), None);
        assert_eq!(
            wrong("nginx", &old),
            Some((
                "Image nginx does not start on n0, a Windows node of build 10.0.17763".to_owned(),
                select("kubernetes.io/os: linux")
            ))
        );
        assert_eq!(
            wrong("a/b:ltsc2022", &linux),
            Some((
                "Image a/b:ltsc2022 does not start on n0, a Linux node".to_owned(),
                select("kubernetes.io/os: windows")
            ))
        );
        assert_eq!(
            wrong("a/b:ltsc2022", &old),
            Some((
                "Image a/b:ltsc2022 does not start on n0, a Windows node of build 10.0.17763"
                    .to_owned(),
                select("node.kubernetes.io/windows-build: 10.0.20348")
            ))
        );
    }

    #[test]
    fn names_of_images_speak_where_one_of_them_is_for_windows() {
        let pod = |images: &[&str]| {
            let mut pod = PodSpec::default();
            pod.template.containers = images
                .iter()
                .map(|image| Container {
                    image: (*image).to_owned(),
                    ..Container::default()
                })
                .collect();
            pod
        };
        let table = ImageTable::default();
        assert!(guessed(&pod(&["nginx", "r.example.com/a:1"]), &table).is_empty());
        let mut wrong = pod(&["nginx"]);
        wrong.template.os = Some("windows".to_owned());
        assert_eq!(
            texts(&guessed(&wrong, &table)),
            ["Image nginx runs on Linux, by the repository docker.io/library/nginx (a guess)"]
        );
        assert_eq!(
            texts(&guessed(&pod(&["a/b:ltsc2022", "nginx"]), &table)),
            [
                "Image a/b:ltsc2022 runs on Windows of build 10.0.20348, by the tag ltsc2022 (a guess)",
                "Image nginx runs on Linux, by the repository docker.io/library/nginx (a guess)",
            ]
        );
    }
}
