//! Writes the CustomResourceDefinitions to `crds/yaml` and into the chart. A test fails when they
//! are stale.

use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in [
        crds.join("yaml"),
        crds.join("../charts/muxtunnel/files/crds"),
    ] {
        fs::create_dir_all(&folder)?;
        for (file, definition) in muxtunnel_crds::schema::definitions()? {
            fs::write(folder.join(file), serde_yaml::to_string(&definition)?)?;
        }
    }
    Ok(())
}
