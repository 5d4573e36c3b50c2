//! Who may import whom. Two claims rest on this table: the controllers run on any cluster, and the API server is a general one.

mod modules;

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// What a crate may not depend on directly, by package name; `crate (dev)` for its tests.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "mullion-engine",
        &[
            "mullion-api",
            "mullion-apiserver",
            "mullion-cloud",
            "mullion-images",
            "mullion-controllers",
            "mullion",
            "tokio",
            "kube",
            "k8s-openapi",
            "futures",
            "rand",
        ],
    ),
    (
        "mullion-api",
        &[
            "mullion-engine",
            "mullion-apiserver",
            "mullion-cloud",
            "mullion-images",
            "mullion-controllers",
            "mullion",
            "axum",
        ],
    ),
    (
        "mullion-apiserver",
        &[
            "mullion-engine",
            "mullion-api",
            "mullion-cloud",
            "mullion-images",
            "mullion-controllers",
            "mullion",
            "kube",
        ],
    ),
    (
        "mullion-cloud",
        &[
            "mullion-apiserver",
            "mullion-aws",
            "mullion-images",
            "mullion-controllers",
            "mullion-aws-wire",
            "mullion",
            "axum",
        ],
    ),
    (
        "mullion-images",
        &[
            "mullion-apiserver",
            "mullion-cloud",
            "mullion-controllers",
            "mullion",
            "kube",
            "k8s-openapi",
            "axum",
        ],
    ),
    (
        "mullion-controllers",
        &[
            "mullion-apiserver",
            "mullion-images",
            "mullion-aws",
            "mullion-aws-wire",
            "mullion",
            "axum",
        ],
    ),
    (
        "mullion-aws",
        &[
            "mullion-apiserver",
            "mullion-images",
            "mullion-controllers",
            "kube",
            "k8s-openapi",
            "axum",
        ],
    ),
    (
        "mullion-apiserver (dev)",
        &[
            "mullion-engine",
            "mullion-api",
            "mullion-cloud",
            "mullion-controllers",
            "mullion",
        ],
    ),
    ("mullion-controllers (dev)", &["mullion"]),
    (
        "mullion-aws-wire",
        &[
            "mullion-apiserver",
            "mullion-controllers",
            "mullion-images",
            "kube",
            "k8s-openapi",
        ],
    ),
];

/// The crates that exist for the engine: small, about data, without an operating system underneath.
const ENGINE_MAY_USE: &[&str] = &[
    "fixedbitset",
    "hashbrown",
    "indexmap",
    "rustc-hash",
    "serde",
    "smallvec",
    "thiserror",
];

/// The layers below the API server, lowest first: what each may use, of ours and of others.
const LAYERS: &[(&str, &[&str])] = &[
    // Parsers, and what reads and writes trees.
    (
        "mullion-kube-text",
        &[
            "base64",
            "indexmap",
            "jiff",
            "regex",
            "serde",
            "serde_json",
            "thiserror",
        ],
    ),
    // The same, and what gives deep expressions their stack.
    (
        "mullion-cel",
        &[
            "mullion-kube-text",
            "base64",
            "chrono",
            "jiff",
            "kube-cel",
            "semver",
            "serde_json",
            "stacker",
        ],
    ),
    (
        "mullion-schema",
        &[
            "mullion-kube-text",
            "base64",
            "jiff",
            "json-patch",
            "regex",
            "rustc-hash",
            "serde",
            "serde-saphyr",
            "serde_json",
            "thiserror",
        ],
    ),
    // What makes writes permanent, and tokio for its channels alone.
    (
        "mullion-store",
        &[
            "mullion-schema",
            "arc-swap",
            "bytes",
            "crc32fast",
            "futures",
            "jiff",
            "rand",
            "redb",
            "rustc-hash",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
        ],
    ),
    // What reads certificates and keys, and what makes random names.
    (
        "mullion-kinds",
        &[
            "mullion-cel",
            "mullion-kube-text",
            "mullion-schema",
            "base64",
            "indexmap",
            "jiff",
            "rand",
            "rustls",
            "serde_json",
            "thiserror",
            "uuid",
            "x509-parser",
        ],
    ),
];

#[test]
fn no_crate_imports_what_its_place_forbids() {
    let dependencies = dependencies();
    for (krate, forbidden) in FORBIDDEN {
        let used = dependencies
            .get(*krate)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for name in *forbidden {
            assert!(
                !used.iter().any(|used| used == name),
                "{krate} may not depend on {name}: see the table in ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn the_engine_uses_small_data_crates_only() {
    for name in &dependencies()["mullion-engine"] {
        assert!(
            ENGINE_MAY_USE.contains(&name.as_str()),
            "mullion-engine may not depend on {name}: it is pure"
        );
    }
}

#[test]
fn each_layer_uses_layers_below_it_and_no_runtime() {
    let dependencies = dependencies();
    for (krate, may_use) in LAYERS {
        for name in &dependencies[*krate] {
            assert!(
                may_use.contains(&name.as_str()),
                "{krate} may not depend on {name}: see docs/decisions/0028-layers-as-crates.md"
            );
        }
    }
}

#[test]
fn nobody_imports_the_program() {
    for (krate, used) in dependencies() {
        assert!(
            !used.iter().any(|name| name == "mullion"),
            "{krate} depends on the binary"
        );
    }
}

/// Direct dependencies by crate, normal and build ones under its name, those of its tests under `name (dev)`.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("a list of packages") {
        let name = package["name"].as_str().expect("a package has a name");
        out.entry(name.to_owned()).or_default();
        for dependency in package["dependencies"]
            .as_array()
            .expect("a list of dependencies")
        {
            let used = dependency["name"]
                .as_str()
                .expect("a dependency has a name")
                .to_owned();
            let key = if dependency["kind"] == "dev" {
                format!("{name} (dev)")
            } else {
                name.to_owned()
            };
            if used != name {
                out.entry(key).or_default().push(used);
            }
        }
    }
    out
}
