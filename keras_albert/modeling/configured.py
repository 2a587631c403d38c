"""`own_path`, for imports from its former module."""

from keras_albert.modeling.base import own_path as own_path
