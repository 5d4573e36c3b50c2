//! One rule of a role: what it allows, what it covers of another rule, and how refusals print it (upstream: rbac/v1 evaluation_helpers.go
//! and component-helpers/auth/rbac/validation).

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use mullion_kube_text::golang::{quote, quote_all};
use mullion_schema::tree::Tree;
use serde_json::{Map, Value};

use crate::request::attributes::{Attributes, Resource, Target};

const ALL: &str = "*";

/// A role that a binding refers to and that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{}.rbac.authorization.k8s.io {} not found", kind.to_ascii_lowercase(), quote(.name))]
pub struct MissingRole {
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// The role's name.
    pub name: String,
}

/// Formats several errors as one, as Go's `Aggregate` does; the text is empty if there are none.
pub fn aggregate(mut errors: Vec<String>) -> String {
    let mut seen = HashSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match errors.len() {
        0 | 1 => errors.concat(),
        _ => format!("[{}]", errors.join(", ")),
    }
}

/// A PolicyRule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The verbs; `*` is all.
    pub verbs: Vec<String>,
    /// The API groups of the resources; `*` is all, and the empty text is core.
    pub groups: Vec<String>,
    /// Resources and subresources (`pods`, `pods/log`, `*/log`); `*` is all.
    pub resources: Vec<String>,
    /// The names of objects; none are all.
    pub names: Vec<String>,
    /// Paths that are no resources (`/healthz`); a `*` at the end stands for whatever follows.
    pub urls: Vec<String>,
}

impl Rule {
    /// The rules of a Role or ClusterRole.
    pub fn all_of(role: &Value) -> Arc<[Rule]> {
        role.items("rules").iter().map(Rule::of).collect()
    }

    fn of(rule: &Value) -> Rule {
        let texts = |field: &str| {
            let items = rule.items(field).iter();
            items
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        };
        Rule {
            verbs: texts("verbs"),
            groups: texts("apiGroups"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            urls: texts("nonResourceURLs"),
        }
    }

    /// The rule that allows everything about every resource, and the one that allows every path.
    pub fn everything() -> [Rule; 2] {
        let all = || vec![ALL.to_owned()];
        let resources = Rule {
            verbs: all(),
            groups: all(),
            resources: all(),
            ..Rule::default()
        };
        let urls = Rule {
            verbs: all(),
            urls: all(),
            ..Rule::default()
        };
        [resources, urls]
    }

    /// Returns whether the rule allows an action.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, &attributes.verb) {
            return false;
        }
        match &attributes.target {
            Target::Resource(resource) => {
                has_or_all(&self.groups, resource.group)
                    && self.names_resource(resource)
                    // A request without a name, such as a creation, matches no rule with names.
                    && (self.names.is_empty() || has(&self.names, &resource.name))
            }
            Target::Path(path) => self.urls.iter().any(|url| url_covers(url, path)),
        }
    }

    fn names_resource(&self, wanted: &Resource<'_>) -> bool {
        let subresource = wanted.subresource;
        self.resources.iter().any(|resource| {
            if resource == ALL {
                true
            } else if subresource.is_empty() {
                resource == wanted.resource
            } else {
                match resource.split_once('/') {
                    Some((parent, part)) => {
                        // `*/scale` names this subresource of every resource, but `pods/*` names none.
                        part == subresource && (parent == ALL || parent == wanted.resource)
                    }
                    None => false,
                }
            }
        })
    }

    /// The rule taken apart: one rule for each group, resource, verb and name, and for each path and verb.
    pub fn atoms(&self) -> Vec<Rule> {
        let one = |text: &String| vec![text.clone()];
        let mut atoms = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom = Rule {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.names.is_empty() {
                        atoms.push(atom);
                        continue;
                    }
                    atoms.extend(self.names.iter().map(|name| Rule {
                        names: one(name),
                        ..atom.clone()
                    }));
                }
            }
        }
        for url in &self.urls {
            atoms.extend(self.verbs.iter().map(|verb| Rule {
                verbs: one(verb),
                urls: one(url),
                ..Rule::default()
            }));
        }
        atoms
    }

    /// Returns whether this rule grants everything that `atom` grants.
    pub fn covers(&self, atom: &Rule) -> bool {
        let all_in = |mine: &[String], theirs: &[String]| {
            has(mine, ALL) || theirs.iter().all(|text| has(mine, text))
        };
        let names = self.names.is_empty()
            || (!atom.names.is_empty() && atom.names.iter().all(|name| has(&self.names, name)));
        let resources = atom.resources.iter().all(|resource| {
            let any_parent = || {
                let (_, part) = resource.split_once('/')?;
                Some(has(&self.resources, &format!("*/{part}")))
            };
            has_or_all(&self.resources, resource) || any_parent().unwrap_or(false)
        });
        let urls = atom
            .urls
            .iter()
            .all(|wanted| self.urls.iter().any(|mine| url_covers(mine, wanted)));
        all_in(&self.verbs, &atom.verbs)
            && all_in(&self.groups, &atom.groups)
            && names
            && resources
            && urls
    }

    /// Returns the rule as a JSON `PolicyRule`.
    pub fn to_json(&self) -> Value {
        let mut rule = Map::new();
        let fields = [
            ("apiGroups", &self.groups),
            ("nonResourceURLs", &self.urls),
            ("resourceNames", &self.names),
            ("resources", &self.resources),
        ];
        for (field, texts) in fields {
            if !texts.is_empty() {
                rule.insert(field.to_owned(), texts.clone().into());
            }
        }
        rule.insert("verbs".to_owned(), self.verbs.clone().into());
        rule.into()
    }

    /// Formats the rule as it appears in escalation errors: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    fn compact(&self) -> String {
        let fields = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let set = fields.into_iter().filter(|(_, texts)| !texts.is_empty());
        let parts: Vec<String> = set
            .map(|(name, texts)| format!("{name}:{}", quote_all(texts)))
            .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// Returns the parts of `wanted` that none of the `owned` rules grants.
pub fn missing_atoms(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(Rule::atoms);
    atoms
        .filter(|atom| !owned.iter().any(|rule| rule.covers(atom)))
        .collect()
}

/// [`missing_atoms`] as refusals print them: sorted lines, verbs of one resource, or one name of it, together.
pub fn missing(owned: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let mut merged: Vec<Rule> = Vec::new();
    for atom in missing_atoms(owned, wanted) {
        // CompactRules merges only rules about resources; paths keep one line for each verb.
        let is_simple = atom.urls.is_empty();
        let same = merged.iter_mut().find(|rule| {
            is_simple
                && rule.urls.is_empty()
                && rule.groups == atom.groups
                && rule.resources == atom.resources
                && rule.names == atom.names
        });
        match same {
            Some(rule) => rule.verbs.extend(atom.verbs),
            None => merged.push(atom),
        }
    }
    let lines: BTreeSet<String> = merged.iter().map(Rule::compact).collect();
    lines.into_iter().collect()
}

fn has(texts: &[String], wanted: &str) -> bool {
    texts.iter().any(|text| text == wanted)
}

fn has_or_all(texts: &[String], wanted: &str) -> bool {
    texts.iter().any(|text| text == ALL || text == wanted)
}

/// Returns whether a path, or a pattern that ends in `*`, covers another.
fn url_covers(pattern: &str, url: &str) -> bool {
    // Like Go's TrimRight, this drops all stars at the end.
    pattern == url || (pattern.ends_with('*') && url.starts_with(pattern.trim_end_matches('*')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(rule: Value) -> Rule {
        Rule::of(&rule)
    }

    /// Asks for an action on a resource of the core group (`pods/p`, `pods/p/log`), or on a path (`/healthz`).
    fn allows(rule: &Rule, verb: &str, target: &str) -> bool {
        let mut parts = target.split('/');
        let mut next = || parts.next().unwrap_or_default();
        let resource = Resource {
            resource: next(),
            name: next().into(),
            subresource: next(),
            ..Resource::default()
        };
        let target = match resource.resource {
            "" => Target::Path(target),
            _ => Target::Resource(resource),
        };
        let verb = verb.into();
        rule.allows(&Attributes { verb, target })
    }

    #[test]
    fn subresources_are_resources_of_their_own() {
        let pods = rule(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}));
        let log = "pods/p/log";
        assert!(allows(&pods, "get", "pods/p"));
        assert!(!allows(&pods, "get", log));
        assert!(!allows(&pods, "list", "pods"));
        for resource in ["pods/log", "*/log", "*"] {
            let rule = rule(json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]}));
            assert!(allows(&rule, "get", log), "{resource}");
        }
        let scale = rule(json!({"apiGroups": [""], "resources": ["*/scale"], "verbs": ["get"]}));
        assert!(!allows(&scale, "get", log));
    }

    #[test]
    fn names_limit_a_rule_and_paths_may_end_in_a_star() {
        let named = rule(
            json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["*"]}),
        );
        assert!(allows(&named, "update", "pods/a"));
        assert!(!allows(&named, "update", "pods/b"));
        assert!(!allows(&named, "create", "pods"));
        let urls = rule(json!({"nonResourceURLs": ["/healthz/*"], "verbs": ["get"]}));
        assert!(allows(&urls, "get", "/healthz/etcd"));
        assert!(!allows(&urls, "get", "/healthz"));
        assert!(!allows(&urls, "post", "/healthz/etcd"));
    }

    #[test]
    fn what_is_missing_is_told_by_resource_and_in_order() {
        let owned = [rule(
            json!({"apiGroups": [""], "resources": ["pods", "*/status"], "verbs": ["get"]}),
        )];
        let wanted = [
            rule(
                json!({"apiGroups": [""], "resources": ["pods", "pods/status", "secrets"], "verbs": ["get", "list"]}),
            ),
            rule(json!({"nonResourceURLs": ["/x"], "verbs": ["get"]})),
        ];
        let expected = [
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#,
            r#"{APIGroups:[""], Resources:["pods/status"], Verbs:["list"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#,
            r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
        ];
        assert_eq!(missing(&owned, &wanted), expected);
        assert!(missing(&Rule::everything(), &wanted).is_empty());
        let named = rule(
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get", "list"]}),
        );
        let expected = [
            r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get" "list"]}"#,
            r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get" "list"]}"#,
        ];
        assert_eq!(missing(&owned, &[named]), expected);
    }

    #[test]
    fn a_rule_for_some_names_does_not_cover_all_of_them() {
        let named = rule(
            json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]}),
        );
        let all = rule(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}));
        assert!(!named.covers(&all) && all.covers(&named));
    }
}
