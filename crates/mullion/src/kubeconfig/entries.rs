//! The content of a kubeconfig: which entries are Mullion's, and how a cluster's entries are added and removed.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Cluster, file::KubeconfigContent, mark};

/// The name of the extension in every cluster, user and context that Mullion writes. kubectl keeps extensions, unlike comments, when it
/// changes a file. The value identifies the cluster of the entry: see [`mark`].
pub(super) const MARK: &str = "mullion.dev/cluster";

/// The lists of a kubeconfig, and the field of their items with the content.
const LISTS: [(&str, &str); 3] = [
    ("contexts", "context"),
    ("clusters", "cluster"),
    ("users", "user"),
];

fn items<'a>(config: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    config[list].as_array().into_iter().flatten()
}

/// Returns the value of an item's mark; `None` if Mullion did not write the item.
fn mark_of<'a>(item: &'a Value, key: &str) -> Option<&'a Value> {
    let extensions = item[key]["extensions"].as_array()?;
    let own = extensions.iter().find(|own| own["name"] == MARK)?;
    Some(&own["extension"])
}

fn title(item: &Value, key: &str) -> String {
    let name = item["name"].as_str().unwrap_or_default();
    format!("{key} {name}")
}

/// Returns the first entry of a kubeconfig that Mullion did not write; `None` for files of Mullion and empty ones.
pub(super) fn foreign(found: &KubeconfigContent) -> Option<String> {
    let config = &found.config;
    if found.is_blank {
        return None;
    }
    if found.has_comments {
        return Some("comments".to_owned());
    }
    for (list, key) in LISTS {
        let mut others = items(config, list).filter(|item| mark_of(item, key).is_none());
        if let Some(item) = others.next() {
            return Some(format!("a {}", title(item, key)));
        }
    }
    let known = ["apiVersion", "kind", "current-context"];
    let known = |name: &str| known.contains(&name) || LISTS.iter().any(|(list, _)| *list == name);
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let mut fields = config.as_object().into_iter().flatten();
    let other = fields.find(|(name, value)| !known(name) && !is_empty(value));
    let other = other.map(|(name, _)| name.clone());
    // A file that Mullion wrote always has an entry, so an empty kubeconfig is someone else's.
    other.or_else(|| is_empty_config(config).then(|| "an empty kubeconfig".to_owned()))
}

/// An entry of another program, by its title.
#[derive(Debug)]
pub(super) struct ForeignEntry(pub(super) String);

/// Checks that no entry with this name was written by another program.
///
/// # Errors
/// Another program wrote one.
pub(super) fn check_name_is_free(config: &Value, name: &str) -> Result<(), ForeignEntry> {
    for (list, key) in LISTS {
        let mut taken = items(config, list).filter(|item| item["name"] == name);
        if let Some(item) = taken.find(|item| mark_of(item, key).is_none()) {
            return Err(ForeignEntry(title(item, key)));
        }
    }
    Ok(())
}

/// Returns the servers of Mullion's clusters: all, or those with a name.
pub(super) fn servers(config: &Value, name: Option<&str>) -> Vec<String> {
    let own = items(config, "clusters").filter(|item| mark_of(item, "cluster").is_some());
    let named = own.filter(|item| name.is_none_or(|name| item["name"] == name));
    let servers = named.filter_map(|item| item["cluster"]["server"].as_str());
    servers.map(str::to_owned).collect()
}

/// Returns whether a kubeconfig has a current context.
pub(super) fn has_current(config: &Value) -> bool {
    config["current-context"]
        .as_str()
        .is_some_and(|name| !name.is_empty())
}

/// Returns whether a kubeconfig has a context of this name that Mullion wrote.
pub(super) fn has_own(config: &Value, name: &str) -> bool {
    let mut own = items(config, "contexts").filter(|item| mark_of(item, "context").is_some());
    own.any(|item| item["name"] == name)
}

/// Replaces the entries with the cluster's name and keeps all others. The context becomes the current one if `may_choose` is true and the
/// file has none.
pub(super) fn merged(mut config: Value, cluster: &Cluster<'_>, may_choose: bool) -> Value {
    let encode = |pem: &str| STANDARD.encode(pem);
    let mark = mark(cluster.server, cluster.directory);
    let entries = [
        (
            "clusters",
            "cluster",
            json!({ "server": cluster.server, "certificate-authority-data": encode(&cluster.certs.ca) }),
        ),
        (
            "users",
            "user",
            json!({
                "client-certificate-data": encode(&cluster.certs.admin.cert),
                "client-key-data": encode(&cluster.certs.admin.key),
            }),
        ),
        (
            "contexts",
            "context",
            json!({ "cluster": cluster.name, "user": cluster.name }),
        ),
    ];
    for (list, key, mut value) in entries {
        value["extensions"] = json!([{ "name": MARK, "extension": mark }]);
        let mut items = match config[list].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        // Callers have checked that entries of this name are Mullion's.
        items.retain(|item| item["name"] != cluster.name);
        items.push(json!({ "name": cluster.name, key: value }));
        config[list] = items.into();
    }
    config["apiVersion"] = "v1".into();
    config["kind"] = "Config".into();
    if may_choose && !has_current(&config) {
        config["current-context"] = cluster.name.into();
    }
    config
}

/// Removes the entries with this mark from a kubeconfig, and returns whether there were any. If the current context is removed, none is
/// current.
pub(super) fn take_out(config: &mut Value, mark: &Value) -> bool {
    let mut found = false;
    for (list, key) in LISTS {
        let Value::Array(items) = &mut config[list] else {
            continue;
        };
        let mut gone = Vec::new();
        items.retain(|item| {
            let is_own = mark_of(item, key) == Some(mark);
            if is_own {
                gone.push(item["name"].clone());
            }
            !is_own
        });
        found |= !gone.is_empty();
        // kubectl fails on a current context that does not exist, and takes its defaults for an empty one.
        if list == "contexts" && gone.contains(&config["current-context"]) {
            config["current-context"] = "".into();
        }
    }
    found
}

/// Returns whether a kubeconfig has no entries.
pub(super) fn is_empty_config(config: &Value) -> bool {
    LISTS
        .iter()
        .all(|(list, _)| items(config, list).next().is_none())
}
