"""Small encoders that tests share."""

import dataclasses

import parity
from parity import array

from bert_keras.features import POOLED_OUTPUT

SMALL = parity.GOLDEN_CONFIG


def small(**changes):
    return dataclasses.replace(SMALL, **changes)


def pooled(encoder, features):
    return array(encoder(features)[POOLED_OUTPUT])
