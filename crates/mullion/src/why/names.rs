//! Parses the names of the pods that `mullion why` is asked about, and refuses the names of other kinds of objects.

use crate::{failure::Failure, plan::standing};

/// The words by which kubectl knows pods.
const PODS: [&str; 3] = ["pod", "pods", "po"];
/// Other kinds, by the words that kubectl knows them by; the first is used in messages.
const OTHERS: [&[&str]; 23] = [
    &["deployment", "deployments", "deploy"],
    &["daemonset", "daemonsets", "ds"],
    &["replicaset", "replicasets", "rs"],
    &["statefulset", "statefulsets", "sts"],
    &["replicationcontroller", "replicationcontrollers", "rc"],
    &["job", "jobs"],
    &["cronjob", "cronjobs", "cj"],
    &["service", "services", "svc"],
    &["poddisruptionbudget", "poddisruptionbudgets", "pdb"],
    &["horizontalpodautoscaler", "horizontalpodautoscalers", "hpa"],
    &["ingress", "ingresses", "ing"],
    &["configmap", "configmaps", "cm"],
    &["secret", "secrets"],
    &["namespace", "namespaces", "ns"],
    &["persistentvolumeclaim", "persistentvolumeclaims", "pvc"],
    &["persistentvolume", "persistentvolumes", "pv"],
    &["storageclass", "storageclasses", "sc"],
    &["priorityclass", "priorityclasses", "pc"],
    &["resourceclaim", "resourceclaims"],
    &["nodeclaim", "nodeclaims"],
    &["ec2nodeclass", "ec2nodeclasses"],
    &["nodeoverlay", "nodeoverlays"],
    &["capacitybuffer", "capacitybuffers"],
];
/// The kinds of the workloads, which come first above and in this order.
const WORKLOADS: [&str; 7] = [
    "Deployment",
    "DaemonSet",
    "ReplicaSet",
    "StatefulSet",
    "ReplicationController",
    "Job",
    "CronJob",
];
/// How many of the kinds above come first that have pods.
const WITH_PODS: usize = 10;

/// Returns the kind and the names in `node NAME...` or `node/NAME...`, and likewise for nodepools; `None` if another kind is named first.
///
/// # Errors
/// A name comes with another kind.
pub(super) fn of_standing(
    what: &[String],
) -> Result<Option<(standing::Kind, Vec<String>)>, Failure> {
    let Some(first) = what.first() else {
        return Ok(None);
    };
    let (kind, words) = match (standing::Kind::named(first), first.split_once('/')) {
        (Some(kind), _) => (kind, &what[1..]),
        (None, Some((word, _))) => match standing::Kind::named(word) {
            Some(kind) => (kind, what),
            None => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    let name = |word: &String| match word.split_once('/') {
        None => Ok(word.clone()),
        Some((own, name)) if standing::Kind::named(own) == Some(kind) => Ok(name.to_owned()),
        Some((_, name)) => Err(Failure::input(format!(
            "{word}: objects of one kind are asked about at a time, here of the kind in {first}"
        ))
        .hint(format!("ask about {name} on its own"))),
    };
    let names: Result<Vec<String>, Failure> = words.iter().map(name).collect();
    Ok(Some((kind, names?)))
}

/// Returns the kinds and the names in `deployment NAME...` or `deployment/NAME...`, and likewise for other workloads; `None` if something else
/// is named first.
///
/// # Errors
/// An object that is no workload is named beside one.
pub(super) fn of_workloads(
    what: &[String],
) -> Result<Option<Vec<(&'static str, String)>>, Failure> {
    let Some((first, rest)) = what.split_first() else {
        return Ok(None);
    };
    let usual = workload(first).filter(|_| !rest.is_empty());
    let is_in_name = first
        .split_once('/')
        .is_some_and(|(word, _)| workload(word).is_some());
    if usual.is_none() && !is_in_name {
        return Ok(None);
    }
    let name = |word: &String| {
        let (kind, name) = match word.split_once('/') {
            Some((word, name)) => (workload(word), name),
            None => (usual, word.as_str()),
        };
        match kind {
            Some(kind) if !name.is_empty() => Ok((kind, name.to_owned())),
            _ => Err(Failure::input(format!(
                "{word}: names beside a workload are those of workloads"
            ))
            .hint("mullion why deployment/NAME statefulset/NAME")),
        }
    };
    let words = if usual.is_some() { rest } else { what };
    words.iter().map(name).collect::<Result<_, _>>().map(Some)
}

/// Returns the kind of workloads that kubectl knows by this word.
fn workload(word: &str) -> Option<&'static str> {
    let index = OTHERS.iter().position(|words| words.contains(&word))?;
    WORKLOADS.get(index).copied()
}

/// Returns the names of the pods in `pod NAME...`, `pod/NAME` or NAME.
///
/// # Errors
/// An object of another kind is named; the hint says what to ask instead.
pub(super) fn of(what: &[String], of_files: bool) -> Result<Vec<String>, Failure> {
    if let [kind, name, ..] = what
        && OTHERS.iter().any(|words| words.contains(&kind.as_str()))
    {
        return Err(other(&what.join(" "), kind, name, of_files));
    }
    let words = match what.split_first() {
        Some((first, rest)) if PODS.contains(&first.as_str()) => rest,
        _ => what,
    };
    let name = |word: &String| match word.split_once('/') {
        None => Ok(word.clone()),
        Some((kind, name)) if PODS.contains(&kind) => Ok(name.to_owned()),
        Some((kind, name)) => Err(other(word, kind, name, of_files)),
    };
    words.iter().map(name).collect()
}

/// Returns the failure for an object that is no pod.
fn other(what: &str, kind: &str, name: &str, of_files: bool) -> Failure {
    if of_files {
        return Failure::input(format!(
            "{what}: objects of the files are named without their kind"
        ))
        .hint(format!("mullion why -f FILE {name}"));
    }
    if standing::Kind::named(kind).is_some() {
        return Failure::input(format!(
            "{what}: objects of one kind are asked about at a time, here pods"
        ))
        .hint(format!("mullion why {kind} {name}"));
    }
    let position = OTHERS.iter().position(|words| words.contains(&kind));
    let kind = position.map_or(kind, |index| OTHERS[index][0]);
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    };
    let failure = Failure::input(format!(
        "{what}: pods, workloads, nodes and nodepools can be explained, not {article} {kind}"
    ));
    match position {
        Some(index) if index < WITH_PODS => failure.hint(
            "ask about its pods by their labels, `mullion why pod -l app=iis`, or by their names",
        ),
        _ => failure.hint("mullion why pod NAME, mullion why node NAME, mullion why nodepool NAME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        of(&words, false).map_err(|failure| failure.to_string())
    }

    #[test]
    fn nodes_and_pools_are_named_with_their_kind_before_or_in_each_name() {
        let said = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            of_standing(&words).map_err(|failure| failure.to_string())
        };
        let both = vec!["a".to_owned(), "b".to_owned()];
        for words in [
            &["node", "a", "b"][..],
            &["no", "node/a", "b"],
            &["nodes/a", "node/b"],
        ] {
            assert_eq!(said(words), Ok(Some((standing::Kind::Node, both.clone()))));
        }
        assert_eq!(
            said(&["nodepool/a"]),
            Ok(Some((standing::Kind::NodePool, vec!["a".to_owned()])))
        );
        assert_eq!(
            said(&["node/a", "nodepool/b"]),
            Err("error: nodepool/b: objects of one kind are asked about at a time, here of the kind in node/a\nhint:  ask about b on its own".to_owned())
        );
        for words in [&[][..], &["pod", "node"], &["pod/a"], &["iis"]] {
            assert_eq!(said(words), Ok(None));
        }
    }

    #[test]
    fn a_pod_may_have_the_name_of_a_kind() {
        for words in [&["pod", "svc"][..], &["svc"], &["pod/svc"]] {
            assert_eq!(said(words), Ok(vec!["svc".to_owned()]));
        }
    }

    #[test]
    fn workloads_are_named_with_their_kind_before_or_in_each_name() {
        let said = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            of_workloads(&words).map_err(|failure| failure.to_string())
        };
        let all = |all: &[(&'static str, &str)]| {
            let all = all.iter().map(|(kind, name)| (*kind, (*name).to_owned()));
            Ok(Some(all.collect()))
        };
        for (words, expected) in [
            (&["deploy/a"][..], &[("Deployment", "a")][..]),
            (
                &["rs", "a", "b"],
                &[("ReplicaSet", "a"), ("ReplicaSet", "b")],
            ),
            (
                &["sts/a", "ds/b"],
                &[("StatefulSet", "a"), ("DaemonSet", "b")],
            ),
            (&["job/a"], &[("Job", "a")]),
            (&["cronjobs/a"], &[("CronJob", "a")]),
        ] {
            assert_eq!(said(words), all(expected));
        }
        for words in [&[][..], &["deploy"], &["pod/a"], &["svc/a"], &["node", "a"]] {
            assert_eq!(said(words), Ok(None));
        }
        let refused = said(&["deploy/a", "b"]).expect_err("refused");
        assert!(
            refused.starts_with("error: b: names beside a workload"),
            "{refused}"
        );
    }
}
