//! Parses manifests: the platforms of an index, or the platform of a single image. This module does no I/O.
//!
//! Attestations (`unknown/unknown`) and artifacts are not images. If an index contains another index, a manifest of schema 1 or an image
//! without a platform, the platforms of the whole image are unknown, because a guess would send pods to nodes that cannot run them.

use mullion_engine::images::{BuildSpan, Platform, Runs, System};
use serde::{Deserialize, Deserializer};

/// The media types that are accepted.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const IMAGES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
const CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];
/// The maximum number of platforms of one image; an image with more counts as unknown.
const MOST: usize = 64;

/// The reason why the platforms of an image are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPlatforms {
    /// The manifest is not JSON of its type, for the reason that the parser gives.
    #[error("its manifest cannot be read: {0}")]
    Manifest(String),
    /// The manifest has the first schema.
    #[error("its manifest is of schema 1, which names no platform")]
    Schema1,
    /// The manifest describes something else than an image.
    #[error("it is no image but an artifact")]
    Artifact,
    /// The digest of the config is in no supported form.
    #[error("its config has no digest that can be verified")]
    NoDigest,
    /// The config is not JSON of its type, for the reason that the parser gives.
    #[error("its config cannot be read: {0}")]
    Config(String),
    /// The config names no platform.
    #[error("its config names no platform")]
    NoPlatform,
    /// The image is for this system.
    #[error("it is for {0}, which no node runs")]
    OtherSystem(String),
    /// The index contains another one.
    #[error("there is an index inside its index")]
    NestedIndex,
    /// An entry of the index names no platform.
    #[error("a manifest of its index names no platform")]
    NamelessEntry,
    /// No entry of the index is for a system that nodes run.
    #[error("its index has no image for Linux or Windows")]
    NoImage,
    /// The index has so many images.
    #[error("its index has {0} images, which is beyond {MOST}")]
    TooMany(usize),
}

/// One image of an index, or a single image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The platform that it runs on.
    pub platform: Platform,
    /// The `os.version` as written; container runtimes choose by it. Empty if there is none.
    pub os_version: String,
    /// The digest of its manifest.
    pub digest: String,
    /// The sum of its layers' sizes in bytes; `None` until its manifest has been read.
    pub bytes: Option<u64>,
    /// The program that it starts; `None` until its config has been read.
    pub program: Option<Program>,
}

/// The program that an image starts unless the container names another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Program {
    /// The entrypoint, which a container's `command` replaces.
    #[serde(rename = "Entrypoint", default, deserialize_with = "list_or_null")]
    pub entrypoint: Vec<String>,
    /// The arguments, which a container's `args` replace.
    #[serde(rename = "Cmd", default, deserialize_with = "list_or_null")]
    pub arguments: Vec<String>,
}

/// Deserializes a list that may be null.
fn list_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The facts about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The digest of the manifest or index that the name refers to.
    pub digest: String,
    /// The images in it, in the registry's order, or the reason why its platforms are unknown.
    pub variants: Result<Vec<Variant>, UnknownPlatforms>,
}

impl Content {
    /// Returns the platforms of the image, if they are known.
    pub fn runs(&self) -> Option<Runs> {
        let variants = self.variants.as_ref().ok()?;
        Some(variants.iter().map(|one| one.platform.clone()).collect())
    }
}

/// A parsed manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Manifest {
    /// An index: its variants, or the reason why they are unknown.
    Index(Result<Vec<Variant>, UnknownPlatforms>),
    /// A single image.
    Single {
        /// The digest of its config.
        config: String,
        /// The sum of its layers in bytes.
        bytes: u64,
    },
    /// Not an image.
    Other(UnknownPlatforms),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: Option<u8>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    manifests: Option<Vec<Entry>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    digest: String,
    artifact_type: Option<String>,
    platform: Option<PlatformDocument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: u64,
}

/// The platform of an index entry; a config blob has the same fields.
#[derive(Deserialize)]
struct PlatformDocument {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default, rename = "os.version")]
    os_version: String,
}

/// Parses a manifest of this media type.
pub(crate) fn read(media_type: &str, body: &[u8]) -> Manifest {
    let document: Document = match serde_json::from_slice(body) {
        Ok(document) => document,
        Err(error) => return Manifest::Other(UnknownPlatforms::Manifest(error.to_string())),
    };
    if document.schema_version != Some(2) {
        return Manifest::Other(UnknownPlatforms::Schema1);
    }
    // The document's own type comes first, because some registries send a general Content-Type.
    let named = document.media_type.as_deref().unwrap_or(media_type);
    if let Some(entries) = document.manifests.filter(|_| !IMAGES.contains(&named)) {
        return Manifest::Index(variants(entries));
    }
    let is_artifact = document.artifact_type.is_some_and(|kind| !kind.is_empty());
    match (document.config, document.layers) {
        (Some(config), Some(layers))
            if !is_artifact && CONFIGS.contains(&config.media_type.as_str()) =>
        {
            let sizes = layers.iter().map(|layer| layer.size);
            Manifest::Single {
                config: config.digest,
                bytes: sizes.fold(0, u64::saturating_add),
            }
        }
        _ => Manifest::Other(UnknownPlatforms::Artifact),
    }
}

/// Returns the program that an image starts, from its config blob.
pub(crate) fn read_program(body: &[u8]) -> Option<Program> {
    #[derive(Deserialize)]
    struct Config {
        config: Option<Program>,
    }
    let config: Config = serde_json::from_slice(body).ok()?;
    Some(config.config.unwrap_or_default())
}

/// Parses the platform and `os.version` from the config blob of a single image.
pub(crate) fn read_config(body: &[u8]) -> Result<(Platform, String), UnknownPlatforms> {
    let document: PlatformDocument = serde_json::from_slice(body)
        .map_err(|error| UnknownPlatforms::Config(error.to_string()))?;
    match platform(&document) {
        Some(platform) => Ok((platform, document.os_version)),
        None if document.os.is_empty() => Err(UnknownPlatforms::NoPlatform),
        None => Err(UnknownPlatforms::OtherSystem(document.os)),
    }
}

fn variants(entries: Vec<Entry>) -> Result<Vec<Variant>, UnknownPlatforms> {
    let mut variants = Vec::new();
    for entry in entries {
        if INDEXES.contains(&entry.media_type.as_str()) {
            return Err(UnknownPlatforms::NestedIndex);
        }
        if entry.artifact_type.is_some_and(|kind| !kind.is_empty()) {
            continue;
        }
        let Some(document) = entry.platform else {
            return Err(UnknownPlatforms::NamelessEntry);
        };
        let is_unknown = document.os == "unknown" && document.architecture == "unknown";
        // Build attestations have the platform `unknown/unknown`.
        if is_unknown || !is_digest(&entry.digest) {
            continue;
        }
        if document.os.is_empty() {
            return Err(UnknownPlatforms::NamelessEntry);
        }
        // An image for another system, for example FreeBSD, does not concern nodes.
        let Some(platform) = platform(&document) else {
            continue;
        };
        variants.push(Variant {
            platform,
            os_version: document.os_version,
            digest: entry.digest,
            bytes: None,
            program: None,
        });
    }
    match variants.len() {
        0 => Err(UnknownPlatforms::NoImage),
        1..=MOST => Ok(variants),
        count => Err(UnknownPlatforms::TooMany(count)),
    }
}

/// Returns the platform, if nodes can have it.
fn platform(document: &PlatformDocument) -> Option<Platform> {
    let system = System::of_label(&document.os.to_ascii_lowercase())?;
    // containerd accepts the names that other tools use for architectures, too.
    let architecture = match document.architecture.to_ascii_lowercase().as_str() {
        "x86_64" | "x86-64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        name => name.to_owned(),
    };
    let is_word = |name: &str| {
        (1..=32).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let build = match system {
        System::Windows => document.os_version.parse().ok().map(BuildSpan::of),
        System::Linux => None,
    };
    is_word(&architecture).then_some(Platform {
        system,
        architecture: Some(architecture),
        builds: build,
    })
}

/// Returns whether a text is a digest in a supported form, which can be verified.
pub(crate) fn is_digest(text: &str) -> bool {
    let is_hex = |hex: &str, length: usize| {
        hex.len() == length && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    match text.split_once(':') {
        Some(("sha256", hex)) => is_hex(hex, 64),
        Some(("sha512", hex)) => is_hex(hex, 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn digest(c: char) -> String {
        format!("sha256:{}", c.to_string().repeat(64))
    }

    fn entry(platform: Value) -> Value {
        json!({"mediaType": IMAGES[0], "digest": digest('a'), "size": 1, "platform": platform})
    }

    fn runs(entries: Value) -> Result<String, UnknownPlatforms> {
        let index = json!({"schemaVersion": 2, "mediaType": INDEXES[0], "manifests": entries});
        let Manifest::Index(variants) = read(INDEXES[0], index.to_string().as_bytes()) else {
            panic!("it is an index");
        };
        let content = Content {
            digest: digest('b'),
            variants: variants.clone(),
        };
        variants.map(|_| content.runs().expect("known").to_string())
    }

    #[test]
    fn an_index_has_a_platform_per_manifest() {
        let windows = |version: &str| {
            entry(json!({"os": "windows", "architecture": "amd64", "os.version": version}))
        };
        let entries = json!([
            entry(json!({"os": "linux", "architecture": "amd64"})),
            entry(json!({"os": "linux", "architecture": "aarch64", "variant": "v8"})),
            windows("10.0.17763.6414"),
            windows("10.0.20348.2700"),
            entry(json!({"os": "freebsd", "architecture": "amd64"})),
        ]);
        assert_eq!(
            runs(entries).unwrap(),
            "linux/amd64,linux/arm64,windows/amd64:10.0.17763,windows/amd64:10.0.20348"
        );
    }

    #[test]
    fn a_windows_entry_without_a_version_counts_for_every_build() {
        let entries = json!([entry(json!({"os": "windows", "architecture": "amd64"}))]);
        assert_eq!(runs(entries).unwrap(), "windows/amd64");
    }

    #[test]
    fn attestations_and_artifacts_are_no_images() {
        let mut artifact = entry(json!({"os": "windows", "architecture": "amd64"}));
        artifact["artifactType"] = "application/vnd.example".into();
        let entries = json!([
            entry(json!({"os": "linux", "architecture": "amd64"})),
            entry(json!({"os": "unknown", "architecture": "unknown"})),
            artifact,
        ]);
        assert_eq!(runs(entries).unwrap(), "linux/amd64");
    }

    #[test]
    fn what_cannot_be_told_makes_the_whole_unknown() {
        let linux = entry(json!({"os": "linux", "architecture": "amd64"}));
        let mut nested = linux.clone();
        nested["mediaType"] = INDEXES[0].into();
        let mut nameless = linux.clone();
        nameless["platform"] = Value::Null;
        for odd in [nested, nameless, entry(json!({}))] {
            assert!(runs(json!([linux, odd])).is_err());
        }
        assert!(runs(json!([])).is_err());
        assert!(runs(json!(vec![linux; MOST + 1])).is_err());
    }

    #[test]
    fn a_single_image_names_its_platform_in_its_config() {
        let image = json!({
            "schemaVersion": 2,
            "config": {"mediaType": CONFIGS[0], "digest": digest('c'), "size": 10},
            "layers": [{"mediaType": "x", "digest": digest('d'), "size": 7}, {"mediaType": "x", "digest": digest('e'), "size": 5}],
        });
        assert_eq!(
            read(IMAGES[0], image.to_string().as_bytes()),
            Manifest::Single {
                config: digest('c'),
                bytes: 12
            }
        );
        let config =
            json!({"os": "windows", "architecture": "amd64", "os.version": "10.0.20348.1"});
        let (platform, version) = read_config(config.to_string().as_bytes()).unwrap();
        assert_eq!(platform.to_string(), "windows/amd64:10.0.20348");
        assert_eq!(version, "10.0.20348.1");
        for config in [json!({}), json!({"os": "wasi", "architecture": "wasm"})] {
            assert!(read_config(config.to_string().as_bytes()).is_err());
        }
    }

    #[test]
    fn a_config_says_what_its_image_starts() {
        let program = |config: Value| read_program(config.to_string().as_bytes());
        let config = json!({"os": "windows", "config": {"Entrypoint": [r"C:\a.exe"], "Cmd": null}});
        let expected = Program {
            entrypoint: vec![r"C:\a.exe".to_owned()],
            arguments: Vec::new(),
        };
        assert_eq!(program(config), Some(expected));
        assert_eq!(program(json!({})), Some(Program::default()));
        assert_eq!(program(json!({"config": {"Cmd": "a"}})), None);
    }

    #[test]
    fn schema_1_and_artifacts_are_no_images() {
        let old = json!({"schemaVersion": 1, "name": "a", "fsLayers": []});
        let artifact = json!({
            "schemaVersion": 2,
            "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": digest('c'), "size": 2},
            "layers": [],
        });
        for document in [old, artifact, json!([])] {
            let read = read(IMAGES[0], document.to_string().as_bytes());
            assert!(matches!(read, Manifest::Other(_)), "{read:?}");
        }
    }

    #[test]
    fn only_digests_that_can_be_verified_are_asked_for() {
        assert!(is_digest(&digest('a')));
        for text in ["sha256:../..", "md5:aa", "sha256:", &digest('g')] {
            assert!(!is_digest(text), "{text}");
        }
    }
}
