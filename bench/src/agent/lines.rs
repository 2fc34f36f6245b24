//! Reads the output of a child process line by line, with a bound on the line.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest line in bytes. The rest of a longer line is dropped.
const LINE_BYTES_MAX: usize = 4096;
/// Maximum number of bytes read at a time.
const CHUNK_BYTES: usize = 4096;

/// Passes each line of `output` to `take`, until the end of the output. A read error is treated as
/// the end, because the process has ended.
pub(super) async fn for_each_line(mut output: impl AsyncRead + Unpin, mut take: impl FnMut(&str)) {
    let mut line = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length) = output.read(&mut chunk).await {
        if length == 0 {
            break;
        }
        for byte in &chunk[..length] {
            if *byte == b'\n' {
                take(&String::from_utf8_lossy(&line));
                line.clear();
            } else if line.len() < LINE_BYTES_MAX {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        take(&String::from_utf8_lossy(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn lines_are_split_bounded_and_the_last_one_needs_no_newline() {
        let long = "x".repeat(3 * LINE_BYTES_MAX);
        let output = format!("a\n\n{long}\nb");
        let mut lines = Vec::new();
        for_each_line(output.as_bytes(), |line| lines.push(line.to_owned())).await;
        assert_eq!(lines[0], "a");
        assert_eq!(lines[1], "");
        assert_eq!(lines[2].len(), LINE_BYTES_MAX);
        assert_eq!(lines[3], "b");
    }
}
