//! SSM: the parameters that hold ids of images.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{admit, read, unknown};
use crate::{Endpoint, refusal::Refusal};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GetParameter {
    name: String,
    #[serde(default, rename = "WithDecryption")]
    _with_decryption: bool,
}

pub(super) fn run_action(endpoint: &Endpoint, action: &str, body: &[u8]) -> Result<Value, Refusal> {
    admit(endpoint, "ssm", action)?;
    if action != "GetParameter" {
        return Err(unknown(&format!("ssm:{action}")));
    }
    let request: GetParameter = read(body)?;
    let name = request.name.as_str();
    let found = endpoint.ec2().parameter(name);
    let held = found
        .ok_or_else(|| Refusal::new("ParameterNotFound", format!("Parameter {name} not found.")))?;
    let region = &endpoint.ec2().config().region;
    Ok(json!({
        "Parameter": {
            "ARN": format!("arn:aws:ssm:{region}::parameter{name}"),
            "DataType": "text",
            "LastModifiedDate": 1_742_169_600 + 2_592_000 * i64::from(held.changes),
            "Name": name,
            "Type": "String",
            "Value": held.value,
            "Version": held.changes + 1,
        }
    }))
}
