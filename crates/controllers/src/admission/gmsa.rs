//! Group managed service accounts of Windows pods: writes GMSACredentialSpecs into the pods that name them.
//!
//! Source: kubernetes-sigs/windows-gmsa, admission-webhook, including its messages and status codes. As there, the
//! options of the pod, its containers and its init containers count; those of ephemeral containers do not.

use serde_json::Value;
use uuid::Uuid;

use super::{Access, ClusterReader, Refusal, Rule, ServiceAccount, Verdict, Write, go_json};

const GROUP: &str = "windows.k8s.io";
const PLURAL: &str = "gmsacredentialspecs";
/// The label by which a namespace with the value `true` is exempt.
const DISABLED: &str = "windows.k8s.io/disabled";
const NAME: &str = "gmsaCredentialSpecName";
const CONTENTS: &str = "gmsaCredentialSpec";
/// The length of a random host name, cut from a UUID; NetBIOS names are no longer.
const HOST_NAME_LENGTH: usize = 15;

/// Expands, checks and authorizes the GMSACredentialSpecs that pods name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gmsa {
    /// Whether a pod with a GMSACredentialSpec and without a host name gets a random one (windows-gmsa:
    /// `RANDOM_HOSTNAME`).
    pub random_host_name: bool,
}

/// The Windows options of a pod or of one of its containers.
struct Options<'a> {
    options: &'a Value,
    /// The kind of owner for messages: `pod`, `container` or `initContainer`.
    kind: &'static str,
    /// The name of the pod or container.
    name: &'a str,
    /// The path of the security context's owner below the pod's spec.
    path: Vec<String>,
}

impl Options<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        self.options[field].as_str()
    }

    fn is_pod(&self) -> bool {
        self.kind == "pod"
    }
}

impl Rule for Gmsa {
    fn name(&self) -> &'static str {
        "GMSA"
    }

    fn mutate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let mut verdict = Verdict::default();
        let options = options_of(write.pod);
        let mut named = options
            .iter()
            .filter(|options| options.text(NAME).is_some());
        // The namespace is looked up last: almost no pod names a GMSACredentialSpec.
        if write.old.is_some() || named.clone().next().is_none() || is_disabled(write, cluster) {
            return verdict;
        }
        if let Err(refused) = named.try_for_each(|options| expand(options, cluster, &mut verdict)) {
            return refused;
        }
        let host_name = write.pod["spec"]["hostname"].as_str().unwrap_or_default();
        if self.random_host_name && host_name.is_empty() {
            let mut name = Uuid::new_v4().to_string();
            name.truncate(HOST_NAME_LENGTH);
            verdict.set(&["spec", "hostname"], name);
        }
        verdict
    }

    fn validate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let options = options_of(write.pod);
        if options.is_empty() || is_disabled(write, cluster) {
            return Verdict::default();
        }
        let judged = match write.old {
            None => options
                .iter()
                .try_for_each(|options| judge(options, write, cluster)),
            Some(old) => {
                let old = options_of(old);
                options
                    .iter()
                    .try_for_each(|options| judge_update(options, &old))
            }
        };
        judged.err().unwrap_or_default()
    }
}

/// Returns a refusal in the form of windows-gmsa: with a code and without a reason.
fn refused(code: u16, text: String) -> Verdict {
    Verdict {
        refusal: Some(Refusal {
            code,
            reason: "",
            text,
        }),
        ..Verdict::default()
    }
}

fn is_disabled(write: &Write<'_>, cluster: &dyn ClusterReader) -> bool {
    let namespace = cluster.find("", "namespaces", None, write.namespace);
    namespace.is_some_and(|namespace| namespace["metadata"]["labels"][DISABLED] == "true")
}

/// Returns the Windows options of the pod, of its containers and of its init containers, in this order.
fn options_of(pod: &Value) -> Vec<Options<'_>> {
    let spec = &pod["spec"];
    let own = windows_options(spec).map(|options| Options {
        options,
        kind: "pod",
        name: pod["metadata"]["name"].as_str().unwrap_or_default(),
        path: Vec::new(),
    });
    let mut all = Vec::from_iter(own);
    for (list, kind) in [
        ("containers", "container"),
        ("initContainers", "initContainer"),
    ] {
        let containers = spec[list].as_array().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            all.extend(windows_options(container).map(|options| Options {
                options,
                kind,
                name: container["name"].as_str().unwrap_or_default(),
                path: vec![list.to_owned(), index.to_string()],
            }));
        }
    }
    all
}

/// Returns the Windows options in the security context of a pod's spec or of a container.
fn windows_options(owner: &Value) -> Option<&Value> {
    let options = owner.get("securityContext")?.get("windowsOptions")?;
    options.is_object().then_some(options)
}

/// Adds the change that writes the contents if only the name is set.
fn expand(
    options: &Options<'_>,
    cluster: &dyn ClusterReader,
    verdict: &mut Verdict,
) -> Result<(), Verdict> {
    let (Some(name), None) = (options.text(NAME), options.text(CONTENTS)) else {
        return Ok(());
    };
    let contents = contents_of(name, cluster)?;
    let owner = options.path.iter().map(String::as_str);
    let path: Vec<&str> = ["spec"]
        .into_iter()
        .chain(owner)
        .chain(["securityContext", "windowsOptions", CONTENTS])
        .collect();
    verdict.set(&path, contents);
    Ok(())
}

/// Returns the contents of a GMSACredentialSpec as compact JSON.
fn contents_of(name: &str, cluster: &dyn ClusterReader) -> Result<String, Verdict> {
    let Some(found) = cluster.find(GROUP, PLURAL, None, name) else {
        let why = format!("cred spec {name} does not exist");
        return Err(refused(404, why));
    };
    match found.get("credspec") {
        None => {
            let why = format!("cred spec {name} does not have a credspec key");
            Err(refused(417, why))
        }
        Some(contents) => Ok(go_json::text(contents)),
    }
}

fn judge(
    options: &Options<'_>,
    write: &Write<'_>,
    cluster: &dyn ClusterReader,
) -> Result<(), Verdict> {
    let Options { kind, name, .. } = options;
    let contents = options.text(CONTENTS);
    let Some(spec) = options.text(NAME) else {
        return match contents {
            None => Ok(()),
            Some(_) => Err(refused(
                422,
                format!(
                    "{kind} {name:?} has a GMSA cred spec set, but does not define the name of the corresponding resource"
                ),
            )),
        };
    };
    // Before the contents are compared, so that nobody learns the contents of a spec that they may not use.
    authorize(spec, write, cluster)?;
    let Some(contents) = contents else {
        return Ok(());
    };
    let why = match go_json::is_same_object(contents, &contents_of(spec, cluster)?) {
        Ok(true) => return Ok(()),
        Ok(false) => String::new(),
        Err(error) => format!(": {error}"),
    };
    Err(refused(
        422,
        format!(
            "the GMSA cred spec contents for {kind} {name:?} does not match the contents of GMSA resource {spec:?}{why}"
        ),
    ))
}

/// Refuses a pod whose service account may not `use` the GMSACredentialSpec.
fn authorize(spec: &str, write: &Write<'_>, cluster: &dyn ClusterReader) -> Result<(), Verdict> {
    let account = write.pod["spec"]["serviceAccountName"].as_str();
    let account = ServiceAccount {
        namespace: write.namespace,
        name: account.unwrap_or_default(),
    };
    let access = Access {
        verb: "use",
        group: GROUP,
        plural: PLURAL,
        name: spec,
    };
    let permission = cluster.may(&account, &access);
    if permission.allowed {
        return Ok(());
    }
    let mut why = format!(
        "service account {:?} is not authorized to `use` GMSA cred spec {spec:?}",
        account.name
    );
    if !permission.reason.is_empty() {
        why += &format!(", reason: {:?}", permission.reason);
    }
    Err(refused(403, why))
}

/// Refuses an update that changes a name or contents. Containers of the old pod are matched by name. Options that
/// the new pod does not have at all are not compared.
fn judge_update(options: &Options<'_>, old: &[Options<'_>]) -> Result<(), Verdict> {
    let Options { kind, name, .. } = options;
    // windows-gmsa collects them in a map, in which the last of several with one name stays.
    let before = old.iter().rev().find(|before| {
        before.is_pod() == options.is_pod() && (options.is_pod() || before.name == *name)
    });
    let is_changed =
        |field: &str| options.text(field) != before.and_then(|before| before.text(field));
    let changed = [(NAME, "name"), (CONTENTS, "contents")];
    let changed: Vec<&str> = changed
        .into_iter()
        .filter(|(field, _)| is_changed(field))
        .map(|(_, what)| what)
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    let changed = changed.join(" and ");
    Err(refused(
        403,
        format!(
            "cannot update an existing pod's GMSA settings (GMSA {changed} modified on {kind} {name:?})"
        ),
    ))
}
