//! The Price List service: the on-demand prices of instances, taken from the catalogue.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use mullion_api::ami::Os;
use mullion_cloud::{
    CapacityType,
    catalogue::{self, InstanceType, Price, price},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{admit, read, unknown};
use crate::{Endpoint, ec2::usd, refusal::Refusal};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GetProducts {
    service_code: String,
    #[serde(default)]
    filters: Vec<Filter>,
    #[serde(rename = "FormatVersion")]
    _format_version: Option<String>,
    next_token: Option<String>,
    max_results: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Filter {
    #[serde(rename = "Type")]
    kind: String,
    field: String,
    value: String,
}

pub(super) fn run_action(endpoint: &Endpoint, action: &str, body: &[u8]) -> Result<Value, Refusal> {
    admit(endpoint, "pricing", action)?;
    if action != "GetProducts" {
        return Err(unknown(&format!("pricing:{action}")));
    }
    let request: GetProducts = read(body)?;
    let invalid = |text: String| Refusal::new("InvalidParameterException", text);
    if request.service_code != "AmazonEC2" {
        let code = request.service_code;
        return Err(invalid(format!(
            "The service {code} is not simulated, only AmazonEC2 is"
        )));
    }
    if let Some(other) = request.filters.iter().find(|own| own.kind != "TERM_MATCH") {
        return Err(invalid(format!(
            "Filters of type {} are not simulated, only TERM_MATCH is",
            other.kind
        )));
    }
    let most = request.max_results.unwrap_or(100);
    if !(1..=100).contains(&most) {
        return Err(invalid("MaxResults must be between 1 and 100".to_owned()));
    }
    let after = match &request.next_token {
        None => 0,
        Some(token) => {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let number = text.and_then(|text| text.strip_prefix("from ")?.parse().ok());
            number.ok_or_else(|| {
                Refusal::new(
                    "InvalidNextTokenException",
                    "The pagination token is invalid. Try again without a pagination token.",
                )
            })?
        }
    };
    let most = usize::try_from(most).unwrap_or(100);
    let region = &endpoint.ec2().config().region;
    let mut products = Vec::new();
    for instance_type in catalogue::all() {
        for os in [Os::Linux, Os::Windows] {
            let Some(price) = price::of(instance_type, os, CapacityType::OnDemand) else {
                continue;
            };
            let attributes = attributes(instance_type, os, region);
            if matches(&attributes, &request.filters)? {
                products.push((instance_type, os, price));
            }
        }
    }
    let page = products.iter().skip(after).take(most);
    let list: Vec<_> = page
        .map(|(instance_type, os, price)| product(instance_type, *os, region, *price).to_string())
        .collect();
    let next = after + list.len();
    let mut answer = json!({ "FormatVersion": "aws_v1", "PriceList": list });
    if next < products.len() {
        answer["NextToken"] = BASE64_URL_SAFE_NO_PAD.encode(format!("from {next}")).into();
    }
    Ok(answer)
}

/// Returns the attributes by which filters find a product.
fn attributes(own: &InstanceType, os: Os, region: &str) -> Vec<(&'static str, String)> {
    let (family, tenancy) = if own.bare_metal {
        ("Compute Instance (bare metal)", "Dedicated")
    } else {
        ("Compute Instance", "Shared")
    };
    let os = match os {
        Os::Linux => "Linux",
        Os::Windows => "Windows",
    };
    [
        ("capacitystatus", "Used"),
        ("instanceType", &own.name),
        ("licenseModel", "No License required"),
        ("marketoption", "OnDemand"),
        ("operatingSystem", os),
        ("preInstalledSw", "NA"),
        ("productFamily", family),
        ("regionCode", region),
        ("serviceCode", "AmazonEC2"),
        ("servicecode", "AmazonEC2"),
        ("tenancy", tenancy),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec()
}

fn matches(attributes: &[(&'static str, String)], filters: &[Filter]) -> Result<bool, Refusal> {
    for filter in filters {
        let found = attributes.iter().find(|(name, _)| *name == filter.field);
        let (_, value) = found.ok_or_else(|| {
            Refusal::new(
                "InvalidParameterException",
                format!("Products are not found by the field {} here", filter.field),
            )
        })?;
        if !value.eq_ignore_ascii_case(&filter.value) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn product(own: &InstanceType, os: Os, region: &str, price: Price) -> Value {
    let mut all = serde_json::Map::new();
    for (name, value) in attributes(own, os, region) {
        all.insert(name.to_owned(), value.into());
    }
    let family = all.remove("productFamily");
    all.insert("vcpu".to_owned(), own.vcpus.to_string().into());
    all.insert(
        "memory".to_owned(),
        format!("{} GiB", own.memory_mib as f64 / 1024.0).into(),
    );
    let sku = format!("{}.{}", own.name, os);
    json!({
        "product": { "productFamily": family, "attributes": all, "sku": sku },
        "serviceCode": "AmazonEC2",
        "terms": { "OnDemand": { format!("{sku}.ondemand"): {
            "sku": sku,
            "priceDimensions": { format!("{sku}.ondemand.hrs"): {
                "unit": "Hrs",
                "pricePerUnit": { "USD": format!("{}0000", usd(price)) },
            } },
        } } },
    })
}
