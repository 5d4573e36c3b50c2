//! What roles grant, what requests use of it, and what is left over.

use std::{collections::BTreeSet, fmt};

use serde_json::Value;

use super::proxy::Asked;

/// One thing that may be done, or is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    verb: String,
    group: String,
    /// With its subresource: `pods/status`.
    resource: String,
    /// `None`: all of them.
    name: Option<String>,
    /// `None`: all of them, or there are none.
    namespace: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        Ok(())
    }
}

impl Right {
    /// Whether whoever has this right may do `used`.
    fn covers(&self, used: &Right) -> bool {
        let within = |own: &Option<String>, other: &Option<String>| own.is_none() || own == other;
        self.verb == used.verb
            && self.group == used.group
            && self.resource == used.resource
            && within(&self.name, &used.name)
            && within(&self.namespace, &used.namespace)
    }
}

/// Returns what the ClusterRoles and Roles among objects grant, one right each.
pub(crate) fn granted(objects: &[Value]) -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let mut rights = BTreeSet::new();
    for role in objects {
        let namespace = match role["kind"].as_str() {
            Some("ClusterRole") => None,
            Some("Role") => role["metadata"]["namespace"].as_str().map(str::to_owned),
            _ => continue,
        };
        for rule in role["rules"].as_array().into_iter().flatten() {
            let names = texts(&rule["resourceNames"]);
            let names: Vec<_> = if names.is_empty() {
                vec![None]
            } else {
                names.into_iter().map(Some).collect()
            };
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        rights.extend(names.iter().map(|name| Right {
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                            namespace: namespace.clone(),
                        }));
                    }
                }
            }
        }
    }
    rights
}

/// Returns the rights that a request uses; none for paths that are no objects. Who applies what is not there also creates it.
fn uses(asked: &Asked) -> Vec<Right> {
    let (path, query) = asked.uri.split_once('?').unwrap_or((&asked.uri, ""));
    let mut words = path.trim_matches('/').split('/');
    let group = match words.next() {
        Some("api") => "",
        Some("apis") => words.next().unwrap_or_default(),
        _ => return Vec::new(),
    };
    // The version.
    words.next();
    let mut rest: Vec<_> = words.collect();
    let mut namespace = None;
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        namespace = Some(rest[1].to_owned());
        rest.drain(..2);
    }
    let Some(&resource) = rest.first() else {
        return Vec::new();
    };
    let mut name = rest.get(1).map(|&name| name.to_owned());
    let resource = match rest.get(2) {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    };
    let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
    let is_watch = pairs().any(|(key, value)| key == "watch" && matches!(value, "true" | "1"));
    let verb = match (asked.method.as_str(), &name) {
        ("GET", Some(_)) => "get",
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        _ => "deletecollection",
    };
    if name.is_none() {
        // Lists of one object are allowed by its name.
        let selected = pairs().find(|(key, _)| *key == "fieldSelector");
        let selected = selected.map(|(_, value)| value.replace("%3D", "="));
        name = selected.and_then(|text| text.strip_prefix("metadata.name=").map(str::to_owned));
    }
    let used = Right {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource,
        name,
        namespace,
    };
    let mut all = vec![used.clone()];
    if verb == "patch" && asked.status == 201 {
        all.push(Right {
            verb: "create".to_owned(),
            ..used
        });
    }
    all
}

/// Returns the requests that were refused for want of a right, as `GET /path`.
pub(crate) fn refused(asked: &[Asked]) -> BTreeSet<String> {
    let refused = asked
        .iter()
        .filter(|asked| [401, 403].contains(&asked.status));
    refused
        .map(|asked| format!("{} {}", asked.method, asked.uri))
        .collect()
}

/// Returns the requests that were not done, whatever the reason, with the status.
pub(crate) fn failed(asked: &[Asked]) -> BTreeSet<String> {
    let failed = asked.iter().filter(|asked| asked.status >= 400);
    let shown = failed.map(|asked| format!("{} {} {}", asked.status, asked.method, asked.uri));
    shown.collect()
}

/// Returns the rights that no request used.
pub(crate) fn unused(granted: &BTreeSet<Right>, asked: &[Asked]) -> BTreeSet<Right> {
    let used: BTreeSet<_> = asked.iter().flat_map(uses).collect();
    let is_used = |right: &&Right| used.iter().any(|used| right.covers(used));
    let unused = granted.iter().filter(|right| !is_used(right));
    unused.cloned().collect()
}
