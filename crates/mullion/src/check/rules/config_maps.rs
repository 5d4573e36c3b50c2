//! Checks the roles of nodes and the ConfigMap for addresses: MUL071 and MUL076.

use serde_json::{Value, json};

use super::{Context, nodes::has_group, strings};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::list,
    problem::Problem,
    subject::Object,
    yaml::edit::{self, Edit},
};

const PROXY: &str = "eks:kube-proxy-windows";
const IPAM: &str = "enable-windows-ipam";
const PREFIXES: &str = "enable-windows-prefix-delegation";
const TARGETS: [&str; 3] = ["warm-ip-target", "minimum-ip-target", "warm-prefix-target"];

pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    match object.kind() {
        "ClusterConfig" if object.is("ClusterConfig", "eksctl.io") => {
            mappings(context, index, object, found)
        }
        "ConfigMap" if object.name() == "aws-auth" => aws_auth(context, index, object, found),
        "ConfigMap" if object.name() == "amazon-vpc-cni" => {
            addresses(context, index, object, found)
        }
        _ => {}
    }
}

/// Returns whether the ConfigMap among the objects turns on prefix delegation for Windows.
pub(super) fn prefixes(objects: &[Object]) -> bool {
    let map = objects
        .iter()
        .find(|object| object.kind() == "ConfigMap" && object.name() == "amazon-vpc-cni");
    let on = |map: &Object, key: &str| {
        parse_bool(map.value["data"][key].as_str().unwrap_or_default()) == Some(true)
    };
    map.is_some_and(|map| on(map, IPAM) && on(map, PREFIXES))
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns whether an aws-auth mapping is for nodes.
fn is_of_nodes(mapping: &Value) -> bool {
    has_group(mapping, "system:nodes")
        || mapping["username"]
            .as_str()
            .is_some_and(|name| name.starts_with("system:node:"))
}

/// Checks MUL071 (a role of Windows nodes without eks:kube-proxy-windows) in eksctl's `iamIdentityMappings`.
fn mappings(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let all = &object.value["iamIdentityMappings"];
    // If one role has the group, the other roles are those of Linux nodes.
    if !context.mixed || list(all).any(|mapping| has_group(mapping, PROXY)) {
        return;
    }
    for (position, mapping) in list(all)
        .enumerate()
        .filter(|(_, mapping)| is_of_nodes(mapping))
    {
        let at = Path::of(&["iamIdentityMappings"])
            .index(position)
            .key("groups");
        let role = mapping["arn"].as_str().unwrap_or_default().to_owned();
        found
            .add("MUL071", index, at.clone(), Problem::NoProxyGroup { role })
            .safe([Edit::Push(at, json!(PROXY))]);
    }
}

/// Checks MUL071 in the ConfigMap aws-auth, whose roles are a YAML text.
fn aws_auth(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let text = object.text_at("/data/mapRoles");
    let Ok(roles) = serde_saphyr::from_str::<Value>(text) else {
        return;
    };
    if !context.mixed || list(&roles).any(|role| has_group(role, PROXY)) {
        return;
    }
    for (position, role) in list(&roles)
        .enumerate()
        .filter(|(_, role)| is_of_nodes(role))
    {
        let at = Path::of(&["data", "mapRoles"]);
        let groups = Path::default().index(position).key("groups");
        let name = role["rolearn"].as_str().unwrap_or_default().to_owned();
        let finding = found.add(
            "MUL071",
            index,
            at.clone(),
            Problem::NoProxyGroup { role: name },
        );
        // The roles are YAML inside a string, so the inner text is edited and the string replaced.
        if let Some(changed) = edit::apply(text, 0, &Edit::Push(groups, json!(PROXY))) {
            finding.safe([Edit::Set(at, json!(changed))]);
        }
    }
}

/// Checks MUL076: a ConfigMap amazon-vpc-cni that gives Windows pods no addresses.
fn addresses(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let data = &object.value["data"];
    let at = |key: &str| Path::of(&["data", key]);
    let turn_on = || Edit::Set(at(IPAM), json!("true"));
    let ipam = data[IPAM].as_str();
    match ipam.map(parse_bool) {
        None if context.mixed => {
            found
                .add("MUL076", index, Path::of(&["data"]), Problem::IpamMissing)
                .safe([turn_on()]);
        }
        Some(None) => {
            let finding = found.add(
                "MUL076",
                index,
                at(IPAM),
                Problem::NotBoolean {
                    key: IPAM,
                    value: ipam.unwrap_or_default().to_owned(),
                },
            );
            // These words clearly mean true, so the fix is safe.
            if matches!(
                ipam.unwrap_or_default().to_ascii_lowercase().as_str(),
                "yes" | "on" | "enabled" | "true"
            ) {
                finding.safe([turn_on()]);
            }
        }
        _ => {}
    }
    let on = ipam.and_then(parse_bool) == Some(true);
    match data[PREFIXES].as_str().map(parse_bool) {
        Some(None) => {
            let value = data[PREFIXES].as_str().unwrap_or_default().to_owned();
            found.add(
                "MUL076",
                index,
                at(PREFIXES),
                Problem::NotBoolean {
                    key: PREFIXES,
                    value,
                },
            );
        }
        Some(Some(true)) if !on => {
            let finding = found.add("MUL076", index, at(PREFIXES), Problem::PrefixesAlone);
            // An explicit "false" may be meant, so then it is not said which of the two keys is wrong.
            if ipam.and_then(parse_bool).is_none() {
                finding.safe([turn_on()]);
            }
        }
        _ => {}
    }
    let prefixes = on && data[PREFIXES].as_str().and_then(parse_bool) == Some(true);
    targets(index, data, prefixes, found);
}

/// Checks MUL076 for the six keys that set how many addresses are kept in reserve.
fn targets(index: usize, data: &Value, prefixes: bool, found: &mut Findings) {
    let at = |key: &str| Path::of(&["data", key]);
    for target in TARGETS {
        let windows = format!("windows-{target}");
        for key in [target, &windows] {
            let Some(text) = data[key].as_str() else {
                continue;
            };
            match text.parse::<i64>() {
                Err(_) => {
                    found.add(
                        "MUL076",
                        index,
                        at(key),
                        Problem::NotNumber {
                            key: key.to_owned(),
                            value: text.to_owned(),
                        },
                    );
                }
                Ok(number) if number < 0 => {
                    found.add(
                        "MUL076",
                        index,
                        at(key),
                        Problem::NegativeTarget {
                            key: key.to_owned(),
                            value: number,
                        },
                    );
                }
                Ok(_) => {}
            }
        }
        // The key without `windows-` wins, so its value can be moved to the other key without a change of meaning.
        if let (Some(value), Some(_)) = (data[target].as_str(), data[&windows].as_str()) {
            found
                .add(
                    "MUL076",
                    index,
                    at(target),
                    Problem::TwoTargets { key: target },
                )
                .safe([
                    Edit::Set(at(&windows), json!(value)),
                    Edit::Remove(at(target)),
                ]);
        }
    }
    let given = |target: &str| {
        [target.to_owned(), format!("windows-{target}")]
            .into_iter()
            .find(|key| data[key].is_string())
    };
    let (warm, minimum, prefix) = (given(TARGETS[0]), given(TARGETS[1]), given(TARGETS[2]));
    if let (None, Some(minimum), None) = (&warm, &minimum, &prefix)
        && !prefixes
    {
        let warm = minimum.replace("minimum-ip-target", "warm-ip-target");
        found
            .add(
                "MUL076",
                index,
                at(minimum),
                Problem::OnlyMinimum {
                    key: minimum.clone(),
                },
            )
            .safe([Edit::Set(at(&warm), json!("3"))]);
    }
    let contradicts = strings(&json!([
        data["windows-warm-ip-target"],
        data["windows-minimum-ip-target"]
    ]))
    .count();
    if prefixes && prefix.is_some() && contradicts > 0 {
        found.add(
            "MUL076",
            index,
            at(prefix.as_deref().unwrap_or_default()),
            Problem::TargetsContradict,
        );
    }
}
