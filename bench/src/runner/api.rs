//! The runner's HTTP server: applies the operator's requests to the board.

use axum::extract::{Path, State};
use axum::routing::{get, put};
use axum::{Json, Router};
use http::StatusCode;
use muxtunnel_bench_api::runner::{self, Offer};
use tokio::sync::watch;

use super::board::{Board, OfferError};
use crate::serve::{Refusal, guarded};
use crate::token::Admission;

type SharedBoard = State<watch::Sender<Board>>;

pub(super) fn routes(board: watch::Sender<Board>, operator: Admission) -> Router {
    let routes = Router::new()
        .route("/v1/state", get(tell_state))
        .route("/v1/environments/{index}", put(take_offer))
        .route("/v1/finished", put(finish))
        .with_state(board);
    guarded(routes, operator)
}

async fn tell_state(State(board): SharedBoard) -> Json<runner::State> {
    Json(board.borrow().state())
}

async fn take_offer(
    State(board): SharedBoard,
    Path(index): Path<usize>,
    Json(offer): Json<Offer>,
) -> Result<Json<runner::State>, Refusal> {
    let mut outcome = Ok(());
    board.send_modify(|board| outcome = board.offer(index, offer));
    match outcome {
        Ok(()) => Ok(Json(board.borrow().state())),
        Err(error) => {
            let status = match error {
                OfferError::NotItsTurn { .. } => StatusCode::CONFLICT,
                OfferError::Unknown { .. } => StatusCode::NOT_FOUND,
                OfferError::NoPair(_) => StatusCode::BAD_REQUEST,
            };
            Err(Refusal(status, error.to_string()))
        }
    }
}

async fn finish(State(board): SharedBoard) -> Json<runner::State> {
    board.send_modify(Board::finish);
    Json(board.borrow().state())
}
