//! Reads the texts to check, and their objects with their positions.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
};

use serde_json::Value;

use super::{
    ignore::Ignores,
    kustomize,
    path::{Path, Step},
    subject::Object,
    yaml::tree::{self, Comment, Location, Node},
};
use crate::{failure::Failure, input, out, why::manifest};

/// A text with objects.
pub(super) struct Text {
    /// The name of the text in messages.
    pub(super) name: String,
    /// The path of the file; `None` for stdin.
    pub(super) file: Option<PathBuf>,
    pub(super) content: String,
    /// The documents but for the empty ones.
    roots: Vec<Node>,
    /// For each of them, the file from which Helm or kustomize generated it.
    origins: Vec<Option<String>>,
    pub(super) ignores: Ignores,
    /// Whether kustomize merges the objects into others.
    is_patch: bool,
}

impl Text {
    /// Reads a file, or stdin.
    ///
    /// # Errors
    /// It cannot be read, or is not YAML.
    pub(super) fn read(path: &FilePath) -> Result<Self, Failure> {
        let content = input::text_of(path)?;
        let file = (!input::is_stdin(path)).then(|| path.to_owned());
        Text::of(input::named(path), file, content)
    }

    /// Parses a text.
    ///
    /// # Errors
    /// The text is not YAML.
    pub(super) fn of(
        name: String,
        file: Option<PathBuf>,
        content: String,
    ) -> Result<Self, Failure> {
        let parsed = tree::parse(&content).map_err(|error| {
            let at = error.marker();
            let failure = Failure::input(format!(
                "{name}: line {} column {}: {}",
                at.line(),
                at.col() + 1,
                error.info()
            ));
            if content.contains("{{") {
                // A template with braces is not YAML before Helm has rendered it.
                failure.hint(
                    "a chart is checked as Helm renders it: helm template CHART | mullion check -",
                )
            } else {
                failure
            }
        });
        let (roots, comments) = parsed?;
        let origins = roots.iter().map(|root| origin(root, &comments)).collect();
        Ok(Text {
            ignores: Ignores::of(&comments),
            name,
            file,
            content,
            roots,
            origins,
            is_patch: false,
        })
    }

    /// Returns the text with another content.
    ///
    /// # Errors
    /// The content is not YAML.
    pub(super) fn with_content(&self, content: String) -> Result<Self, Failure> {
        let changed = Text::of(self.name.clone(), self.file.clone(), content)?;
        Ok(Text {
            is_patch: self.is_patch,
            ..changed
        })
    }

    /// Returns the objects of the text. Documents that are not meant as Kubernetes objects are skipped.
    ///
    /// # Errors
    /// The text is not YAML.
    pub(super) fn objects(&self, number: usize) -> Result<Vec<Object>, Failure> {
        let (_, found) = manifest::objects(&self.content, &self.name)?;
        let objects = found.into_iter().map(|found| Object {
            value: with_whole_numbers(found.object),
            text: number,
            document: found.document,
            root: Path(
                found
                    .items
                    .iter()
                    .flat_map(|index| [Step::Key("items".to_owned()), Step::Index(*index)])
                    .collect(),
            ),
            is_patch: self.is_patch,
        });
        Ok(objects.filter(is_meant_as_object).collect())
    }

    /// Returns the position in the text of a path in an object.
    pub(super) fn locate(&self, object: &Object, at: &Path) -> Location {
        let root = self.roots.get(object.document);
        root.map(|root| root.locate(&object.root.join(at)))
            .unwrap_or_default()
    }

    /// Returns the file from which a tool generated the object's document.
    pub(super) fn origin<'o>(&'o self, object: &'o Object) -> Option<&'o str> {
        let annotations = &object.value["metadata"]["annotations"];
        let by_comment = self.origins.get(object.document).and_then(Option::as_deref);
        by_comment.or_else(|| {
            let origin = annotations["config.kubernetes.io/origin"].as_str()?;
            origin
                .lines()
                .find_map(|line| line.trim().strip_prefix("path: "))
        })
    }
}

/// Returns an object as clients send it: Go writes a float without a fraction, such as 3.0, as a whole number.
fn with_whole_numbers(value: Value) -> Value {
    /// Go writes larger floats with an exponent.
    const MOST: f64 = 1e15;
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number
                .as_f64()
                .filter(|own| own.fract() == 0.0 && own.abs() < MOST);
            // The cast is exact: the float is whole and below 2^53.
            float.map_or(Value::Number(number), |float| Value::from(float as i64))
        }
        Value::Array(items) => items.into_iter().map(with_whole_numbers).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name, with_whole_numbers(value)));
            Value::Object(fields.collect())
        }
        value => value,
    }
}

/// Returns whether a document is meant as a Kubernetes object. Files of other programs have a kind, an apiVersion or a `metadata.name` as well,
/// but seldom the rest of an object (devfiles have `metadata` and a `schemaVersion`, for example).
fn is_meant_as_object(object: &Object) -> bool {
    let has = |field: &str| object.value[field].is_object();
    let is_misspelt = |field: &str| object.misspelt(field).is_some();
    match (object.kind(), object.api_version()) {
        ("", _) | (_, "") if is_misspelt("kind") || is_misspelt("apiVersion") => {
            has("metadata") || has("spec")
        }
        ("", "") => {
            let is_named = object.value["metadata"]["name"].is_string();
            is_named && ["spec", "data", "stringData"].into_iter().any(has)
        }
        // A kubeconfig is read by clients and never applied.
        ("Config", "v1") => !object.value["clusters"].is_array(),
        // Files of kustomize may leave their apiVersion out.
        ("Kustomization" | "Component", "") => false,
        ("", _) | (_, "") => has("metadata") || has("spec"),
        _ => true,
    }
}

/// Returns the file that comments above a document name as its source: `# Source: chart/templates/x.yaml`.
fn origin(root: &Node, comments: &[Comment]) -> Option<String> {
    let mut line = root.line;
    let above = comments
        .iter()
        .rev()
        .filter(|comment| comment.alone && comment.line < root.line);
    for comment in above {
        if comment.line + 1 != line {
            return None;
        }
        line = comment.line;
        if let Some(source) = comment.text.trim().strip_prefix("Source: ") {
            return Some(source.trim().to_owned());
        }
    }
    None
}

/// The texts to check.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) texts: Vec<Text>,
    /// Why files and directories are not checked: they cannot be read, or are not YAML.
    pub(super) unread: Vec<Failure>,
}

/// Reads files, and all manifests in directories and their subdirectories, each once. Helm charts in a directory and the values of a chart are
/// skipped with a note.
///
/// # Errors
/// A path is a Helm chart, or a directory that cannot be read or has no manifests.
pub(super) fn texts(paths: &[PathBuf]) -> Result<Sources, Failure> {
    let (mut sources, mut seen) = (Sources::default(), BTreeSet::new());
    for path in paths {
        if let Some(chart) = manifest::chart_of(path) {
            let (shown, whole) = (path.display(), chart.display());
            let helm = format!("helm template {whole} | mullion check -");
            if path.is_dir() {
                let what = if chart == path {
                    "is a Helm chart: its"
                } else {
                    "is of a Helm chart, whose"
                };
                let why = format!("{shown} {what} templates are checked as Helm renders them");
                return Err(Failure::input(why).hint(helm));
            }
            out::note(&format!(
                "{shown} has values of a Helm chart and is passed over: {helm}"
            ));
            continue;
        }
        let below = manifest::files_below(path)?;
        for chart in below.charts {
            let shown = chart.display();
            out::note(&format!(
                "{shown} is a Helm chart and is passed over: helm template {shown} | mullion check -"
            ));
        }
        sources.unread.extend(below.unread);
        for file in below.files {
            // A link and its target are the same file, which is read only once.
            let real = file.canonicalize().unwrap_or_else(|_| file.clone());
            if seen.insert(real) {
                match Text::read(&file).and_then(|text| text.objects(0).map(|_| text)) {
                    Ok(text) => sources.texts.push(text),
                    Err(failure) => sources.unread.push(failure),
                }
            }
        }
    }
    let files = sources.texts.iter().filter_map(|text| text.file.as_deref());
    let patches = kustomize::patches(files);
    let mut patched = 0;
    for text in &mut sources.texts {
        let real = text.file.as_ref().and_then(|file| file.canonicalize().ok());
        text.is_patch = real.is_some_and(|real| patches.contains(&real));
        patched += usize::from(text.is_patch);
    }
    if patched > 0 {
        let files = if patched == 1 {
            "1 file is a patch"
        } else {
            &format!("{patched} files are patches")
        };
        out::note(&format!(
            "{files} of a kustomization: fields and types alone are checked there; the whole is checked with kubectl kustomize DIRECTORY | mullion check -"
        ));
    }
    Ok(sources)
}

/// Returns a remark for the user if the texts have nothing to check.
///
/// # Errors
/// A text is not YAML.
pub(super) fn nothing_to_check(texts: &[Text]) -> Result<Option<String>, Failure> {
    for text in texts {
        if !text.objects(0)?.is_empty() {
            return Ok(None);
        }
    }
    let Some(first) = texts.first() else {
        return Ok(None);
    };
    let others = match texts.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    Ok(Some(format!(
        "{}{others}: there is no object with a kind and an apiVersion, so nothing is checked",
        first.name
    )))
}
