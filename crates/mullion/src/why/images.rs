//! Determines what the images of a pod run on, and how that is known: from the annotation that placement by image wrote to the pod, or else
//! from the names of the images.

use mullion_api::labels::{self, RUNS_ON};
use mullion_engine::{
    images::{ImageRef, ImageTable, Runs, System},
    model::PodSpec,
};
use serde::Serialize;
use serde_json::Value;

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
    /// Returns the facts as a sentence without a full stop.
    pub(super) fn text(&self) -> String {
        let subject = match &self.container {
            Some(container) => format!("Container {container} ({})", self.image),
            None => format!("Image {}", self.image),
        };
        let runs: Option<Runs> = self.runs_on.as_ref().and_then(|text| text.parse().ok());
        let Some(runs) = runs else {
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
    System::of_label(by_selector.or(pod.template.os.as_ref())?)
}

/// Guesses from the names of a pod's images what they run on. Returns nothing if all run on Linux, and on Windows if the pod asks for
/// Windows: then the images are hardly the user's question.
pub(super) fn guessed(pod: &PodSpec, table: &ImageTable) -> Vec<ImagePlatforms> {
    let containers = pod.template.containers.iter();
    let containers = containers.chain(&pod.template.init_containers);
    let (mut all_on_linux, mut all_on_windows) = (true, true);
    let words = containers.map(|container| {
        let image = ImageRef::parse(&container.image).ok();
        let guess = image.and_then(|image| table.guess(&image));
        let (runs, because) = guess.map(|guess| (guess.runs, guess.because)).unzip();
        all_on_linux &= runs.as_ref().is_none_or(|runs| runs.has(System::Linux));
        all_on_windows &= runs.as_ref().is_none_or(|runs| runs.has(System::Windows));
        ImagePlatforms {
            container: None,
            image: container.image.clone(),
            runs_on: runs.as_ref().map(ToString::to_string),
            source: runs.map(|_| "table".to_owned()),
            because,
        }
    });
    let words: Vec<_> = words.collect();
    let for_windows = wanted(pod) == Some(System::Windows);
    if all_on_linux && (all_on_windows || !for_windows) {
        Vec::new()
    } else {
        words
    }
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
