//! The text that `mullion up` prints when the API responds; nodes may still be booting then.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use mullion_api::eksctl::KubernetesVersion;

use super::{cluster::Cluster, nodes::Machine};
use crate::kubeconfig::Target;

/// The version of the API server.
const API: &str = "1.36";
const NODES: &str = "kubectl get nodes -o wide";
const LINUX_PODS: &str = "kubectl create deployment web --image=nginx:1.27 --replicas=3";
const WINDOWS_POD: &str = r#"kubectl run win --image=mcr.microsoft.com/windows/nanoserver:ltsc2022 \
        --overrides='{"spec":{"os":{"name":"windows"},
          "nodeSelector":{"node.kubernetes.io/windows-build":"10.0.20348"},
          "tolerations":[{"key":"os","value":"windows"}]}}'"#;
const DECISIONS: &str = "kubectl logs -f -n karpenter deployment/karpenter";

/// Returns the text about a cluster with these nodes, without a newline at its end; `end` is the last line, which says how the cluster is
/// stopped.
pub(super) fn text(cluster: &Cluster, nodes: &[Machine], end: &str, colours: bool) -> String {
    let plan = &cluster.plan;
    render(&Facts {
        region: &plan.spec.region,
        version: plan.spec.version,
        speed: plan.speed.factor(),
        server: format!("https://{}", cluster.address),
        ready_s: cluster.api_ready_in.as_secs_f64(),
        groups: groups(nodes),
        default_pools: plan.default_pools,
        kept: plan
            .directory
            .as_deref()
            .map(|directory| (directory, cluster.resumed)),
        kubeconfig: plan.kubeconfig.as_ref(),
        context: &plan.name,
        end,
        colours,
    })
}

struct Facts<'a> {
    region: &'a str,
    /// The version of the nodes.
    version: KubernetesVersion,
    speed: f64,
    server: String,
    ready_s: f64,
    groups: Vec<Group>,
    default_pools: bool,
    /// The directory of the cluster, and whether it existed before.
    kept: Option<(&'a Path, bool)>,
    kubeconfig: Option<&'a Target>,
    context: &'a str,
    /// The last line.
    end: &'a str,
    colours: bool,
}

/// Nodes of one type and image.
#[derive(Debug, PartialEq)]
struct Group {
    instance_type: String,
    os: String,
    image: String,
    nodes: usize,
    ready: usize,
}

impl Group {
    fn counted(&self) -> String {
        format!("{} x {}", self.nodes, self.instance_type)
    }
}

fn groups(machines: &[Machine]) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str, &str), (usize, usize)> = BTreeMap::new();
    for Machine { kind, is_ready, .. } in machines {
        let key = (kind.os, &*kind.image, &*kind.instance_type);
        let counts = groups.entry(key).or_default();
        counts.0 += 1;
        counts.1 += usize::from(*is_ready);
    }
    let rows = groups
        .into_iter()
        .map(|((os, image, instance_type), (nodes, ready))| Group {
            instance_type: instance_type.to_owned(),
            os: os.to_owned(),
            image: image.to_owned(),
            nodes,
            ready,
        });
    rows.collect()
}

fn render(facts: &Facts<'_>) -> String {
    let (bold, dim, green, end) = if facts.colours {
        ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m")
    } else {
        ("", "", "", "")
    };
    let mut out = String::new();
    let speed = if facts.speed.is_infinite() {
        "no delays".to_owned()
    } else {
        format!("speed {}x", factor(facts.speed))
    };
    let nodes = match facts.version.to_string() {
        version if version == API => String::new(),
        version => format!(", nodes {version}"),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{bold}Mullion {}{end}  a mixed Linux/Windows cluster on this machine\n{dim}Kubernetes API {API}{nodes}, simulated EC2 {}, {speed}{end}\n",
        env!("CARGO_PKG_VERSION"),
        facts.region
    );
    let mut rows = vec![Row {
        title: "api",
        what: facts.server.clone(),
        state: format!("{green}ready in {:.2} s{end}", facts.ready_s),
    }];
    rows.extend(group_rows(&facts.groups, green, end));
    if facts.default_pools {
        rows.push(Row {
            title: "pools",
            what: "linux, windows-2019, windows-2022, windows-2025".to_owned(),
            state: "buy on demand".to_owned(),
        });
    }
    if let Some((directory, resumed)) = facts.kept {
        rows.push(Row {
            title: "data",
            what: directory.display().to_string(),
            state: if resumed {
                "goes on as it was".to_owned()
            } else {
                "kept for the next start".to_owned()
            },
        });
    }
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    for Row { title, what, state } in &rows {
        let _ = writeln!(out, "  {title:<6} {what:<width$}  {state}");
    }
    match facts.kubeconfig {
        Some(Target::Usual(path) | Target::File(path)) => {
            let _ = writeln!(out, "\n  {bold}export KUBECONFIG={}{end}", quoted(path));
        }
        Some(Target::Merge(path)) => {
            let _ = writeln!(
                out,
                "\n  context {} added to {}\n  {bold}kubectl config use-context {}{end}",
                facts.context,
                path.display(),
                facts.context
            );
        }
        None => {}
    }
    // A Windows pod finds a node only where a pool can buy one.
    let pods = if facts.default_pools {
        WINDOWS_POD
    } else {
        LINUX_PODS
    };
    for (index, command) in [NODES, pods, DECISIONS].iter().enumerate() {
        let title = if index == 0 { "\nTry:" } else { "    " };
        let _ = writeln!(out, "{title}  {command}");
    }
    out.push_str(facts.end);
    out
}

/// A line about a part of the cluster.
struct Row {
    title: &'static str,
    what: String,
    state: String,
}

/// Formats the nodes by type and image, as rows with columns.
fn group_rows(groups: &[Group], green: &str, end: &str) -> Vec<Row> {
    let widest = |of: fn(&Group) -> usize| groups.iter().map(of).max().unwrap_or(0);
    let (types, systems) = (widest(|g| g.counted().len()), widest(|g| g.os.len()));
    let row = |(index, group): (usize, &Group)| Row {
        title: if index == 0 { "nodes" } else { "" },
        what: format!(
            "{:<types$}  {:<systems$}  {}",
            group.counted(),
            group.os,
            group.image
        ),
        state: match group.ready {
            ready if ready == group.nodes => format!("{green}ready{end}"),
            0 => "starting".to_owned(),
            ready => format!("{ready} of {} ready", group.nodes),
        },
    };
    groups.iter().enumerate().map(row).collect()
}

/// Quotes a path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-+~".contains(c));
    if plain {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Formats the speed's factor, in powers of ten where it would be a long row of zeros.
fn factor(speed: f64) -> String {
    if (1e-3..1e6).contains(&speed) {
        speed.to_string()
    } else {
        format!("{speed:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_of_many_digits_is_a_power_of_ten() {
        let shown = [0.5, 10.0, 999_999.0, 1e308, 1e-300].map(factor);
        assert_eq!(shown, ["0.5", "10", "999999", "1e308", "1e-300"]);
    }

    #[test]
    fn the_banner_says_what_is_there_and_what_to_do_next() {
        let target = Target::File("/home/ann/.local/state/mullion/kubeconfig".into());
        let row = |nodes, ready, os: &str, image: &str, instance_type: &str| Group {
            instance_type: instance_type.into(),
            os: os.into(),
            image: image.into(),
            nodes,
            ready,
        };
        let text = render(&Facts {
            region: "us-west-2",
            version: KubernetesVersion::from_minor(27).expect("known"),
            speed: 10.0,
            server: "https://127.0.0.1:6443".into(),
            ready_s: 0.034,
            groups: vec![
                row(2, 2, "Linux", "Amazon Linux 2023", "m5.large"),
                row(
                    3,
                    1,
                    "Windows",
                    "Windows Server 2022 Datacenter",
                    "m5.xlarge",
                ),
            ],
            default_pools: true,
            kept: None,
            kubeconfig: Some(&target),
            context: "mullion",
            end: "Ctrl-C stops the cluster.",
            colours: false,
        });
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_path_with_a_space_is_quoted() {
        assert_eq!(
            quoted(Path::new("/tmp/my dir/kubeconfig")),
            "'/tmp/my dir/kubeconfig'"
        );
    }
}
