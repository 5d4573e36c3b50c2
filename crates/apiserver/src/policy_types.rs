//! Type checking of ValidatingAdmissionPolicies: `status.typeChecking`.
//!
//! The expressions of a policy are compiled again with the types of the kinds that the policy names, instead of with dynamic types. That
//! changes no decision; the warnings are for the policy's author. Source: kube-controller-manager's validatingadmissionpolicy-status;
//! k8s.io/apiserver: pkg/admission/plugin/policy/validating/typechecking.go.

mod types;

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use mullion_kinds::request::expression::{self, Scope};
use mullion_schema::tree::Tree;
use mullion_store::{Collection, Cursor};
use serde_json::{Value, json};

use crate::{
    http::path::ObjectPath,
    own,
    registry::{Row, Table},
    state::ApiServer,
};

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
const MANAGER: &str = "validatingadmissionpolicy-status";
/// The most kinds that are checked for one policy.
const MAX_KINDS: usize = 10;
/// The time after a failed write until the policies are checked again.
const RETRY: Duration = Duration::from_secs(10);

/// Checks policies until the server is dropped.
pub(crate) async fn run(server: Weak<ApiServer>) {
    let Some(policies) = server.upgrade().map(|server| collection(&server)) else {
        return;
    };
    loop {
        // Create the cursor before the objects are read, so that changes in between are seen.
        let Ok(mut cursor) = Cursor::new(policies.clone(), policies.revision()) else {
            continue;
        };
        loop {
            let Some(server) = server.upgrade() else {
                return;
            };
            let settled = settle(&server).await;
            // The server must not be kept alive while this loop waits.
            drop(server);
            let retry = async {
                if settled {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(RETRY).await
                }
            };
            let followed = tokio::select! {
                events = cursor.next() => events.map(drop),
                () = retry => Ok(()),
            };
            if followed.is_err() {
                break;
            }
        }
    }
}

fn collection(server: &ApiServer) -> Arc<Collection> {
    server.store().collection(&format!("{PLURAL}.{GROUP}"))
}

/// Writes the warnings of policies that have changed. Returns whether all could be written.
async fn settle(server: &Arc<ApiServer>) -> bool {
    let mut all = true;
    for object in collection(server).snapshot(None).objects {
        let policy = object.parse();
        let generation = policy["metadata"].integer("generation").unwrap_or(0);
        let observed = policy["status"].integer("observedGeneration").unwrap_or(0);
        // Only a changed spec is checked again; otherwise the write of its own status would start the next round.
        if generation <= observed {
            continue;
        }
        let name = object.key().name();
        let mut told = json!({});
        let warnings = warnings(server, &policy);
        if !warnings.is_empty() {
            told["expressionWarnings"] = warnings.into();
        }
        let configuration = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "status": {"observedGeneration": generation, "typeChecking": told},
        });
        let path = ObjectPath {
            group: GROUP,
            version: "v1",
            plural: PLURAL,
            name: Some(name),
            ..ObjectPath::default()
        };
        if let Err(status) = own::apply_status(server, &path, MANAGER, &configuration).await {
            tracing::debug!(name, %status, "a policy does not tell what its types say");
            all = false;
        }
    }
    all
}

/// Returns the type checking warnings of a policy.
fn warnings(server: &ApiServer, policy: &Value) -> Vec<Value> {
    let spec = &policy["spec"];
    let table = server.registry().table();
    let nanos = server.now().subsec_nanosecond();
    let typed = |row: &Row| {
        types::of_kind(
            server.registry(),
            row,
            &format!("{}{nanos}", row.resource.kind),
        )
    };
    let params = param_row(&table, &spec["paramKind"]).and_then(|row| typed(&row));
    let kinds: Vec<(String, Scope)> = kinds(&table, spec.get("matchConstraints"))
        .iter()
        .filter_map(|row| {
            let resource = &row.resource;
            let (group, version, kind) = (&resource.group, &resource.version, &resource.kind);
            let mut scope = Scope::typed(typed(row)?, params.clone());
            declare(&mut scope, spec.items("variables"));
            Some((format!("{group}/{version}, Kind={kind}"), scope))
        })
        .collect();
    let mut warnings = Vec::new();
    for (index, validation) in spec.items("validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation.text(field);
            if text.is_empty() && field == "messageExpression" {
                continue;
            }
            let issues = kinds.iter().filter_map(|(kind, scope)| {
                let issues = expression::result_of(text, scope).err()?;
                Some(format!("{kind}: {issues}\n"))
            });
            let issues: Vec<String> = issues.collect();
            if !issues.is_empty() {
                let at = format!("spec.validations[{index}].{field}");
                warnings.push(json!({"fieldRef": at, "warning": issues.join("\n")}));
            }
        }
    }
    warnings
}

/// Declares a policy's variables; one that does not compile has the dynamic type.
fn declare(scope: &mut Scope, variables: &[Value]) {
    for variable in variables {
        let kind = expression::result_of(variable.text("expression"), scope);
        scope.declare(
            variable.text("name"),
            &kind.unwrap_or(mullion_cel::Type::Dyn),
        );
    }
}

fn param_row(table: &Table, kind: &Value) -> Option<Arc<Row>> {
    let wanted = kind.text("apiVersion");
    let of_kind =
        |row: &&Arc<Row>| row.api_version() == wanted && row.resource.kind == kind.text("kind");
    table.rows().iter().find(of_kind).cloned()
}

/// Returns the kinds that a policy names, sorted by group, version and kind. Rules with a wildcard are skipped.
fn kinds(table: &Table, constraints: Option<&Value>) -> Vec<Arc<Row>> {
    let mut found = BTreeMap::new();
    let rules = constraints.map_or(&[][..], |constraints| constraints.items("resourceRules"));
    for rule in rules {
        let list = |field: &str| -> Vec<&str> {
            let mut list: Vec<&str> = rule.items(field).iter().filter_map(Value::as_str).collect();
            list.sort_unstable();
            list
        };
        let (groups, versions) = (list("apiGroups"), list("apiVersions"));
        if [&groups, &versions]
            .iter()
            .any(|list| list.iter().any(|name| name.contains('*')))
        {
            continue;
        }
        let mut count = 0;
        for (group, version) in groups
            .iter()
            .flat_map(|group| versions.iter().map(move |version| (group, version)))
        {
            for resource in list("resources") {
                for row in named(table, group, version, resource) {
                    let resource = &row.resource;
                    let key = [&resource.group, &resource.version, &resource.kind];
                    found.insert(key.map(ToString::to_string), row.clone());
                    count += 1;
                    if count == MAX_KINDS {
                        return found.into_values().collect();
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

/// Returns the rows of a resource by its plural or singular name. An empty group matches any group, as in client-go's RESTMapper.
fn named<'t>(
    table: &'t Table,
    group: &'t str,
    version: &'t str,
    resource: &'t str,
) -> impl Iterator<Item = &'t Arc<Row>> {
    table.rows().iter().filter(move |row| {
        let one = &row.resource;
        (group.is_empty() || one.group == group)
            && one.version == version
            && !resource.contains(['*', '/'])
            && (one.plural == resource || one.singular == resource)
    })
}
